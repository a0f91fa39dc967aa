"""Random models of real width, built on the device, and a manifest that names them.

    python bench/real_width.py FOLDER [--only llama-7b ...]
    conformance run --models FOLDER/models.yaml -b hf -b vllm-pp1 -b vllm-pp2

Llamas of one to seven billion weights and a mixture of experts, with the tokenizer of the tiny
models. models.yaml builds no random model of this size: it must lie in a folder, as a trained one
does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM

from conformance.engines.building import checkpoint_builder

IDS = 512
SEED = 11

KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "initializer_range"),
)
#: The architecture of each model and, in the order of `KEYS`, its config; the spread keeps greedy
#: tokens stable, as the tiny ones'.
MODELS: dict[str, tuple[str, tuple[float, ...]]] = {
    "llama-1b": ("llama", (2048, 20, 16, 8, 5632, 0.035)),
    "llama-3b": ("llama", (3072, 28, 24, 8, 8192, 0.03)),
    "llama-7b": ("llama", (4096, 32, 32, 32, 11008, 0.025)),
    "mixtral-3b": ("mixtral", (2048, 12, 16, 4, 4096, 0.035)),
}

#: What runs of a kind of model, where it is more than a dense one has.
PARTS = {"mixtral": "    parts: [embedding, attention, mlp, norm, head, experts]\n"}

MODEL = """\
  {name}:
    architecture: {architecture}
{parts}    sources: [{{path: {folder}/{name}}}]
"""
BACKENDS = """\
backends:
  hf: {engine: hf}
  vllm-pp1: {engine: vllm}
  vllm-pp2: {engine: vllm, pipeline: 2}
"""


def main(
    folder: Annotated[Path, typer.Argument(help="Where the models are to lie.")],
    only: Annotated[list[str] | None, typer.Option(help="Only these; all without.")] = None,
) -> None:
    """Build them, and write FOLDER/models.yaml."""
    folder = folder.resolve()
    manifest = "models:\n"
    for name in only or MODELS:
        architecture, sizes = MODELS[name]
        config: dict[str, Any] = dict(zip(KEYS, sizes, strict=True))
        weights = build(architecture, config, folder / name)
        print(f"{name}: {weights / 1e9:.2f} billion weights", flush=True)
        manifest += MODEL.format(
            name=name, architecture=architecture, parts=PARTS.get(architecture, ""), folder=folder
        )
    (folder / "models.yaml").write_text(manifest + BACKENDS)


def build(architecture: str, config: dict[str, Any], folder: Path) -> int:
    """Write the checkpoint in bf16; returns how many weights it has."""
    tokenizer = checkpoint_builder._train_tokenizer(IDS)
    wanted = {"vocab_size": IDS, "max_position_embeddings": 1024, **config}
    torch.manual_seed(SEED)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"), torch.no_grad():
        made = checkpoint_builder._config(architecture, wanted, tokenizer)
        model = AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16).eval()
        checkpoint_builder._roughen(model)
        model.get_output_embeddings().weight[tokenizer.pad_token_id] = 0
    checkpoint_builder._save(model, tokenizer, folder)
    return sum(value.numel() for value in model.parameters())


if __name__ == "__main__":
    typer.run(main)

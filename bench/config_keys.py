"""Which keys of the tiny models' configs would nothing notice?

    python bench/config_keys.py [MODEL ...] [--all]

Every key of a tiny model's config (those in its rotary parameters, too) is changed and removed,
one at a time, and the model is built anew with the same weights. A change is *seen* where the
config is refused, where the weights no longer fit, or where the logits or the stream after some
layer move by more than 1e-4 of their length in float32, on a prompt that default cells use; on
that of `long_context` as well where models.yaml says that the model takes long prompts. What is
not seen is untested: an engine that reads the key wrongly passes. Such keys fail the check (exit
status 1) unless a table below says why nothing can see them; `--all` prints these, too. So does a
reason of one architecture that no model of it needs.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from conformance.checkpoints import cache_folder, obtain  # noqa: E402
from conformance.engines import checkpoint_builder  # noqa: E402
from conformance.inputs import manifest  # noqa: E402
from conformance.records import Model  # noqa: E402
from conformance.scenario import PAIR  # noqa: E402
from scenarios.long_context import PROMPT  # noqa: E402

#: Relative change of the logits or of a layer's stream, in float32, from which a change is seen.
SEEN = 1e-4

REMOVED = "removed"

#: Keys (or `key=value`, or a pattern of them) that nothing can see, on any model → why.
NOT_COMPUTED_WITH: Mapping[str, str] = {
    "architectures": "a name",
    "model_type": "a name",
    "dtype": "what the columns choose, not the checkpoint",
    "transformers_version": "a name",
    "_name_or_path": "a name",
    "*token_id": "ids of special tokens, of which the prompts hold none",
    "id2label*": "of classifiers",
    "label2id*": "of classifiers",
    "problem_type": "of classifiers",
    "classifier_dropout": "of classifiers",
    "output_*": "what transformers returns besides",
    "use_cache": "whether keys and values are kept, not what they are",
    "chunk_size_feed_forward": "how a product is cut, not what it is",
    "is_encoder_decoder": "what the class is, not what it computes",
    "is_decoder": "what the class is, not what it computes",
    "initializer_range": "of fresh weights",
    "init_std": "of fresh weights",
    "*dropout*": "of training",
    "*_pdrop": "of training",
    "layerdrop": "of training",
    "router_aux_loss_coef": "of training",
    "router_jitter_noise": "of training",
    "pretraining_tp": "of training; nothing reads it",
    "max_position_embeddings": "a bound on the length, where it sizes no table of weights",
    "*rope_type=removed": "no type is the plain type",
    "partial_rotary_factor": "the rotary parameters hold it, too, and decide",
    "head_dim=None": "derived from width and heads; mistral has another",
    "use_sliding_window": "off in what is published, and vLLM refuses it for some of the layers",
    "max_window_layers": "read where use_sliding_window is on",
    "sliding_window=1": "read where use_sliding_window is on, or by layers of that type",
    "num_key_value_heads=None": "as many as heads, as here",
    "use_bidirectional_attention": "of encoders; transformers asks for it with a mask of its own",
}

#: The same of one architecture. These changes are tried: one that is seen needs no reason.
OF_ARCHITECTURE: Mapping[str, Mapping[str, str]] = {
    "bloom": {"slow_but_exact": "another order of the same sums, which transformers leaves out"},
    "deepseek_v2": {
        "head_dim": "what transformers calls its rotary width; the three widths above decide",
        "qk_head_dim*": "the sum of two others",
        "norm_topk_prob": "transformers' definition leaves it out; off in what is published",
        "n_group": "read by the other way of choosing experts, which deepseek_v2 has",
        "topk_group": "read by the other way of choosing experts, which deepseek_v2 has",
    },
    "deepseek_v3": {
        "qk_head_dim": "the sum of two others",
        "num_nextn_predict_layers": "layers that guess ahead; the checkpoint has none",
        "topk_method": "of vLLM alone, which knows no other with this router",
        "scoring_func": "of vLLM alone, which knows no other with this router",
    },
    "falcon": {
        "num_kv_heads": "of the newer decoder; the older has one or as many as heads",
        "num_ln_in_parallel_attn": "of the newer decoder",
        "ffn_hidden_size=None": "four times the width, as here: vLLM takes no other",
    },
    "gemma": {"hidden_act=gelu": "taken for the approximation that Gemma was trained with"},
    "gemma3_text": {
        "attn_logit_softcapping": "of Gemma 2; transformers' definition leaves it out",
        "_sliding_window_pattern": "what layer_types says of each layer",
    },
    "gpt2": {
        "summary_*": "of classifiers",
        "reorder_and_upcast_attn": "a wider dtype inside attention, where float32 is none",
    },
    "gpt_oss": {
        "hidden_act": "its activation has no choice",
        "swiglu_limit=14.0": "the row gpt_oss-clamp reaches it; vLLM's kernel knows 7 alone",
    },
    "mamba2": {
        "residual_in_fp32": "a wider dtype of the stream, where float32 is none",
        "time_step_rank": "of Mamba 1",
        "time_step_min": "of fresh weights",
        "time_step_max": "of fresh weights",
        "time_step_floor": "of fresh weights",
        "rescale_prenorm_residual": "of fresh weights",
        "chunk_size": "how a scan is cut, not what it is",
    },
    "opt": {"word_embed_proj_dim=None": "the width, as here: others have a projection besides"},
    "phi3": {
        "*long_factor*": "of longer prompts than the engines have room for",
        "rope_parameters.original_max_position_embeddings": "the config's own decides",
    },
}


@dataclass(frozen=True)
class Change:
    """One key with another value, and what its top-level key then is."""

    key: str
    to: str
    top: str
    value: Any

    @property
    def name(self) -> str:
        return f"{self.key}={self.to}"


def changes(key: str, value: Any, layers: int) -> Iterator[tuple[str, Any]]:
    """Other values for a key: (the change in words, the whole value)."""
    match value:
        case None:
            others: Sequence[Any] = (True, 1, 0.5)
        case bool():
            others = (not value,)
        case int():
            # One more token in a window is the least that an engine can be wrong by.
            others = (value + 1 if "window" in key else 2 * value or 1, value // 2, None)
        case float():
            others = (2 * value or 0.5, value / 2, None)
        case str():
            others = ("relu", "gelu") if "act" in key else ("another",)
        case list() if set(map(type, value)) == {str}:
            others = tuple(_exchanged(value))
        case list():
            others = (list(range(layers)),) if not value else (value[::-1], value[1:])
        case _:
            others = ()
    for other in others:
        if type(other) is not type(value) or other != value:
            yield str(other), other


def _exchanged(kinds: list[str]) -> Iterator[list[str]]:
    """Kinds of layers: each one in turn of another kind."""
    known = sorted({*kinds, "full_attention"})
    for index, kind in enumerate(kinds):
        for other in known:
            if other != kind:
                yield [*kinds[:index], other, *kinds[index + 1 :]]


def nested(path: str, value: Mapping[str, Any], layers: int) -> Iterator[tuple[str, str, Any]]:
    """Changes inside a mapping: (key, the change in words, the whole mapping)."""
    for name, part in value.items():
        key = f"{path}.{name}"
        yield key, REMOVED, {other: kept for other, kept in value.items() if other != name}
        if isinstance(part, Mapping):
            for inner, to, whole in nested(key, part, layers):
                yield inner, to, {**value, name: whole}
        for to, other in changes(key, part, layers):
            yield key, to, {**value, name: other}


class TinyModel:
    """A tiny checkpoint in float32, and what it gives with another config."""

    def __init__(self, model: Model) -> None:
        self.model = model
        made = obtain(model, cache_folder(), checkpoint_builder.build)
        self.tokenizer = AutoTokenizer.from_pretrained(made.path)
        wanted = model.sources[0].config
        self.config = checkpoint_builder._config(model.architecture, wanted, self.tokenizer)
        self.given = self._given(wanted)
        self.weights = weights(
            AutoModelForCausalLM.from_pretrained(
                made.path, dtype=torch.float32, attn_implementation="eager"
            )
        )
        self.layers = made.layers

    def _given(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What the config is made from, by the names that it is stored under."""
        flat = {**wanted, **wanted.get(checkpoint_builder.UNREAD, {})}
        flat.pop(checkpoint_builder.UNREAD, None)
        special = {"pad_token_id": self.config.pad_token_id}
        special |= dict.fromkeys(("bos_token_id", "eos_token_id"))
        names = self.config.attribute_map
        return {names.get(key, key): value for key, value in {**flat, **special}.items()}

    @cached_property
    def prompts(self) -> list[Tensor]:
        """The ids of a prompt of the default cells, and of the long one where it is taken."""
        texts = [PAIR[1], *([PROMPT] if "long" in self.model.parts else [])]
        return [self.tokenizer(text, return_tensors="pt").input_ids for text in texts]

    @cached_property
    def truth(self) -> list[list[Tensor]]:
        return [self._observe(self._build(self.config), ids) for ids in self.prompts]

    def changes(self) -> Iterator[Change]:
        """Every change of every key."""
        for key, value in self.config.to_dict().items():
            if isinstance(value, Mapping):
                for inner, to, whole in nested(key, value, self.layers):
                    yield Change(inner, to, key, whole)
            else:
                for to, other in changes(key, value, self.layers):
                    yield Change(key, to, key, other)

    def sees(self, change: Change) -> bool:
        """Whether the change is refused, does not fit the weights, or moves an observation."""
        given = copy.deepcopy({**self.given, change.top: change.value})
        try:
            module = self._build(type(self.config)(**given))
            # One prompt after the other: most changes are seen on the first, short one.
            return any(self._moves(module, index) for index in range(len(self.prompts)))
        except Exception:  # noqa: BLE001 - a config that is refused in any way is not overlooked
            return True

    def _moves(self, module: PreTrainedModel | None, index: int) -> bool:
        if module is None:
            return True
        observed = self._observe(module, self.prompts[index])
        return any(
            not (new - old).norm() <= SEEN * old.norm()
            for new, old in zip(observed, self.truth[index], strict=True)
        )

    def _build(self, config: PretrainedConfig) -> PreTrainedModel | None:
        """The model with this config and these weights, None where they do not fit."""
        with no_init_weights():
            module = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="eager"
            )
        module.tie_weights()
        own = weights(module)
        if {name: value.shape for name, value in own.items()} != {
            name: value.shape for name, value in self.weights.items()
        }:
            return None
        module.load_state_dict(self.weights, strict=False)
        return module.eval()

    @staticmethod
    @torch.no_grad()
    def _observe(module: PreTrainedModel | None, ids: Tensor) -> list[Tensor]:
        if module is None:
            raise ValueError("the weights do not fit their own config")
        output = module(input_ids=ids, output_hidden_states=True, use_cache=False)
        return [output.logits, *output.hidden_states]


def weights(module: PreTrainedModel) -> dict[str, Tensor]:
    """Its weights by name; of those that share memory (tied embeddings) the first."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict().items():
        found.setdefault(value.data_ptr(), (name, value))
    return dict(found.values())


def excuse(change: Change, table: Mapping[str, str]) -> str:
    """The key of a table of reasons that this change falls under, "" where it must be seen."""
    names = (change.key, change.name)
    return next((key for key in table if any(fnmatchcase(name, key) for name in names)), "")


def unseen(model: Model, key: str = "*") -> list[Change]:
    """The changes of a tiny model's config, or of some keys, that no observation sees; what no
    model computes with is not tried.
    """
    tiny = TinyModel(model)
    _ = tiny.truth  # what the unchanged config gives must not be taken for a refusal
    tried = (change for change in tiny.changes() if not excuse(change, NOT_COMPUTED_WITH))
    return [each for each in tried if fnmatchcase(each.key, key) and not tiny.sees(each)]


def tiny_models(names: Sequence[str] = ()) -> list[Model]:
    """The tiny models of models.yaml, or those named."""
    known = manifest.load(ROOT / "models.yaml").models
    return [
        each for each in known if each.sources[0].kind == "tiny" and (not names or each.id in names)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--all", action="store_true", help="print what is excused, too")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    failed = 0
    used = {name: set[str]() for name in OF_ARCHITECTURE}
    for model in tiny_models(asked.models):
        for change in unseen(model):
            table = OF_ARCHITECTURE.get(model.architecture, {})
            key = excuse(change, table)
            used.setdefault(model.architecture, set()).add(key)
            failed += not key
            if not key or asked.all:
                print(f"{model.id}: {change.name}: {table.get(key, 'NOT SEEN')}", flush=True)
    stale = [
        f"{name}: {key}"
        for name, table in OF_ARCHITECTURE.items()
        for key in table
        if not asked.models and key not in used[name]
    ]
    for key in stale:
        print(f"{key}: no model needs this reason")
    print(f"{failed} changes that nothing sees and no reason excuses, {len(stale)} stale reasons")
    return 1 if failed or stale else 0


if __name__ == "__main__":
    sys.exit(main())

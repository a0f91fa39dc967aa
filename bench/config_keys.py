"""Which keys of the tiny models' configs would nothing notice?

    python bench/config_keys.py [MODEL ...] [--all]

Every key of a tiny model's config (those in its rotary parameters, too) is changed and removed,
one at a time, and the model is built anew with the same weights. A change is *seen* where the
config is refused, where the weights no longer fit, or where the logits or the stream after some
layer move by more than 1e-4 of their length in float32, on a prompt that default cells use; on
that of `long_context` as well where models.yaml says that the model takes long prompts. What is
not seen is untested: an engine that reads the key wrongly passes. Such keys fail the check (exit
status 1) unless bench/config_reasons.py says why nothing can see them; `--all` prints these, too.
So does a reason that is false, as the change that it excuses is seen, and one that no model needs.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
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

from bench.config_reasons import (  # noqa: E402
    NOT_COMPUTED_WITH,
    OF_ARCHITECTURE,
    REMOVED,
    Change,
    Reason,
    Tried,
    excuse,
)
from conformance.engines.building import checkpoint_builder  # noqa: E402
from conformance.engines.loading import attention  # noqa: E402
from conformance.spec.checkpoints import cache_folder, obtain  # noqa: E402
from conformance.spec.inputs import manifest  # noqa: E402
from conformance.spec.inputs.usable import UNREAD  # noqa: E402
from conformance.spec.records import Model  # noqa: E402
from conformance.spec.scenario import PAIR  # noqa: E402
from scenarios.long_context import PROMPT  # noqa: E402

#: Relative change of the logits or of a layer's stream, in float32, from which a change is seen.
SEEN = 1e-4


class Outcome(StrEnum):
    """What a changed key did."""

    UNSEEN = "unseen"
    REFUSED = "refused"
    MISFIT = "asks for other weights"
    MOVED = "moves what is observed"


@dataclass(frozen=True)
class Look:
    """A change of a model's config, what came of it, and the key of the reason that excuses it, ""
    for none.
    """

    change: Change
    outcome: Outcome
    own: str = ""
    general: str = ""

    @property
    def hidden(self) -> bool:
        return self.outcome is Outcome.UNSEEN

    @property
    def refutes(self) -> bool:
        """Is it excused as one that nothing sees, and seen? What is refused says nothing of that:
        the value was of another kind.
        """
        computed = self.outcome in {Outcome.MISFIT, Outcome.MOVED}
        return computed and bool(self.own or self.general)


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
        self.attention = attention(made.path)
        self.weights = weights(
            AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.float32, **self.attention)
        )
        self.layers = made.layers

    def _given(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What the config is made from, by the names that it is stored under."""
        flat = {**wanted, **wanted.get(UNREAD, {})}
        flat.pop(UNREAD, None)
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
    def reference(self) -> list[list[Tensor]]:
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

    def look(self, change: Change) -> Look:
        """Make the change: what comes of it, and what excuses it."""
        outcome, made = self._outcome(change)
        tried = Tried(change, self.before, made and made.to_dict())
        return Look(
            change,
            outcome,
            own=excuse(tried, OF_ARCHITECTURE.get(self.model.architecture, {})),
            general=excuse(tried, NOT_COMPUTED_WITH),
        )

    @cached_property
    def before(self) -> Mapping[str, Any]:
        """The config as it is, made in the way in which the changed ones are."""
        config: Mapping[str, Any] = type(self.config)(**copy.deepcopy(self.given)).to_dict()
        return config

    def _outcome(self, change: Change) -> tuple[Outcome, PretrainedConfig | None]:
        """What comes of a change, and the config with it where transformers takes it."""
        given = copy.deepcopy({**self.given, change.top: change.value})
        made = None
        try:
            made = type(self.config)(**given)
            as_made = copy.deepcopy(made)  # building a model may write to its config
            module = self._build(made)
            if module is None:
                return Outcome.MISFIT, as_made
            # One prompt after the other: most changes are seen on the first, short one.
            moves = any(self._moves(module, index) for index in range(len(self.prompts)))
        except Exception:  # noqa: BLE001 - a config that is refused in any way is not overlooked
            return Outcome.REFUSED, None
        return (Outcome.MOVED if moves else Outcome.UNSEEN), as_made

    def _moves(self, module: PreTrainedModel, index: int) -> bool:
        observed = self._observe(module, self.prompts[index])
        return any(
            not (new - old).norm() <= SEEN * old.norm()
            for new, old in zip(observed, self.reference[index], strict=True)
        )

    def _build(self, config: PretrainedConfig) -> PreTrainedModel | None:
        """The model with this config and these weights, None where they do not fit."""
        with no_init_weights():
            module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **self.attention)
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


def looks(model: Model, key: str = "*") -> list[Look]:
    """Every change of a tiny model's config, or of some keys, each tried."""
    tiny = TinyModel(model)
    _ = tiny.reference  # what the unchanged config gives must not be taken for a refusal
    return [tiny.look(each) for each in tiny.changes() if fnmatchcase(each.key, key)]


def unseen(model: Model, key: str = "*") -> list[Change]:
    """The changes that no observation sees, but for what no model computes with."""
    return [look.change for look in looks(model, key) if look.hidden and not look.general]


def refuted(model: Model, key: str = "*") -> list[Change]:
    """The changes that are excused as what nothing sees, and are seen."""
    return [look.change for look in looks(model, key) if look.refutes]


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
    needed: set[tuple[str, str]] = set()
    for model in tiny_models(asked.models):
        for look in looks(model):
            needed |= _needed(model, look)
            words, wrong = _words(model, look)
            failed += wrong
            if words and (wrong or asked.all):
                print(f"{model.id}: {look.change.name}: {words}", flush=True)
    stale = [] if asked.models else list(_stale(needed))
    for name, key in stale:
        print(f"{name or 'all'}: {key}: no model needs this reason")
    print(
        f"{failed} changes that nothing sees or whose reason is false, {len(stale)} stale reasons"
    )
    return 1 if failed or stale else 0


def _words(model: Model, look: Look) -> tuple[str, bool]:
    """What to say of a change, "" for nothing; and whether it fails the check."""
    table = OF_ARCHITECTURE.get(model.architecture, {})
    reason = table.get(look.own) or NOT_COMPUTED_WITH.get(look.general)
    if look.refutes and reason is not None:
        return f"THE REASON IS FALSE, it {look.outcome}: {reason.words}", True
    if not look.hidden:
        return "", False
    return (reason.words, False) if reason else ("NOT SEEN", True)


def _needed(model: Model, look: Look) -> set[tuple[str, str]]:
    """The reason that this change needs: (architecture, or "" for all; its key)."""
    if look.hidden and look.own:
        return {(model.architecture, look.own)}
    return {("", look.general)} if look.hidden and look.general else set()


def _stale(needed: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    tables: Iterable[tuple[str, Mapping[str, Reason]]] = (
        ("", NOT_COMPUTED_WITH),
        *OF_ARCHITECTURE.items(),
    )
    for name, table in tables:
        yield from ((name, key) for key in table if (name, key) not in needed)


if __name__ == "__main__":
    sys.exit(main())

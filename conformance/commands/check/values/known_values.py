"""The catalogue of the values that transformers computed for a trace, with their names.

It includes the two tensors that many of vLLM's layers return, whose sum is the residual stream. In
float32 two computations of the same value agree to about 1e-6, and different values do not agree: a
match therefore identifies what a wrong value holds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

from conformance.commands.check.values.compare import SAME, Values, is_near, layers
from conformance.judge.cell.measures import metrics

#: The words for a clean run's value, for a sequence in which the trace wrote.
UNWRITTEN = ", without what the trace writes"

#: The name of the site of the first layer's input.
ENTRY = "entry"


@dataclass(frozen=True)
class Known:
    """One value that transformers computed: `kind` for programs, `words` for users, `rows` [tokens,
    width]. `written` means that it is from an edited run. `part` and `role` are its place in its
    layer, such as ("mlp", "output"). `held` says which of its rows a value holds, "" for all.
    """

    kind: str
    words: str
    rows: Tensor = field(compare=False)
    layer: int | None = None
    sequence: int = 0
    step: int = field(default=0, compare=False)
    written: bool = field(default=False, compare=False)
    part: str = field(default="", compare=False)
    role: str = field(default="output", compare=False)
    held: str = ""

    @property
    def at(self) -> tuple[int, int, int | None]:
        return self.sequence, self.step, self.layer

    def what(self) -> str:
        """Return the known value and the tokens of its rows in words."""
        return f"{self.words}{f' of {self.held}' if self.held else ''}"


def catalogue(seen: Values, layer_list: str) -> list[Known]:
    """Return all values that transformers computed, the likeliest first in each step."""

    def likelihood(one: Known) -> int:
        """Values with common names come before those of the modules that pass them on."""
        if one.kind in {"mlp", "attention", "logits"}:
            return 0
        if "final norm" in one.words or one.words == "the token embeddings":
            return 1
        if one.kind == "norm-output":
            return 2
        return 4 if one.kind.endswith("-input") else 3

    streams = [*_streams(seen, "layers"), *_streams(seen, "clean")]
    modules = sorted(_modules(seen, layer_list, "value"), key=likelihood)
    halves = list(_halves(streams, modules))
    own = sorted(_modules(seen, layer_list, "written"), key=likelihood)
    own = [*_halves(_streams(seen, "natural"), own), *own]
    wrote = {one.sequence for one in own}
    clean = [
        replace(one, words=f"{one.words}{UNWRITTEN}") if one.sequence in wrote else one
        for one in (*halves, *modules)
    ]
    return sorted(streams + own + clean, key=lambda one: one.step)


def _streams(seen: Values, begin: str) -> Iterator[Known]:
    kind, more = ("stream", "") if begin == "layers" else ("unedited", UNWRITTEN)
    for site, value in layers(seen, begin).items():
        place = site.layer, site.prompt, site.step
        step = f" in step {site.step}" if site.step else ""
        if site.name == "ids":
            yield Known("ids", "the token ids", value.reshape(-1, 1), *place)
        elif site.name != ENTRY:
            words = f"the residual stream after layer {site.layer}{step}{more}"
            yield Known(kind, words, value, *place)


def _modules(seen: Values, layer_list: str, begin: str) -> Iterator[Known]:
    inside = re.compile(re.escape(layer_list) + r"\.(\d+)(?:\.(.+))?")
    for key, value in seen.items():
        if not key.startswith(f"{begin}|"):
            continue
        _, place, path, role = key.split("|")
        number, step = (int(one) for one in place.split("/"))
        match = inside.fullmatch(path)
        name, layer = (match[2], int(match[1])) if match else (path, None)
        if name is None:
            continue  # `_streams` yields a layer's own streams
        kind, words = _called(name, role, layer)
        if role == "logits":
            kind, words = "logits", "the logits"
        words += f" in step {step}" if step else ""
        written = begin == "written"
        yield Known(kind, words, value, layer, number, step, written, part=name, role=role)


def _called(name: str, role: str, layer: int | None) -> tuple[str, str]:
    """Return kind and words for a module's value; without a layer, `name` is the module's path."""
    last = name if layer is not None else name.rpartition(".")[2]
    norm = "norm" in last or last.startswith("ln_")
    words = f"the {role} of {name}"
    if layer is None:
        if norm:
            side = "after" if role == "output" else "before"
            words = f"the residual stream {side} the final norm"
        elif last in {"embed_tokens", "wte", "word_embeddings"}:
            words = "the token embeddings"
        elif last in {"lm_head", "embed_out"} and role == "output":
            words = "the logits before any cap"
        return name, words
    if role == "output" and name in {"mlp", "block_sparse_moe", "feed_forward"}:
        return "mlp", f"the MLP output of layer {layer} without the residual"
    if role == "output" and name in {"self_attn", "attn", "attention", "self_attention"}:
        return "attention", f"the attention output of layer {layer} without the residual"
    if norm:
        what = "normed" if role == "output" else "not yet normed"
        return f"norm-{role}", f"the {what} {role} of {name} in layer {layer}"
    return name if role == "output" else f"{name}-input", f"{words} in layer {layer}"


def _halves(streams: Iterable[Known], modules: Sequence[Known]) -> Iterator[Known]:
    """Yield the two tensors that many of vLLM's layers return: the MLP half, which is the MLP's
    output or its norm, and the residual half, which is the stream minus the MLP half.
    """
    whole = {one.at: one for one in streams if one.kind == "unedited"}
    inputs: dict[tuple[int, int, int | None], list[Tensor]] = defaultdict(list)
    for one in modules:
        if one.kind == "norm-input":
            inputs[one.at].append(one.rows)
    for branch in modules:
        stream = whole.get(branch.at)
        if stream is None or stream.rows.shape != branch.rows.shape:
            continue
        rows = stream.rows - branch.rows
        normed = branch.kind == "norm-output" and any(
            one.shape == rows.shape and is_near(rows, one) for one in inputs[branch.at]
        )
        if branch.kind == "mlp" or normed:
            words = f"the residual of layer {branch.layer} without its MLP output"
            yield replace(branch, kind="residual", words=words, rows=rows)
        if normed:
            words = f"the MLP output of layer {branch.layer}, normed, without the residual"
            yield replace(branch, kind="mlp", words=words)


@dataclass(frozen=True)
class ValuePlace:
    """The place of a value in a model: its layer, None outside the layers; the module's name in the
    layer, "" for the layer itself, or its path outside; and the role, "input" or "output".
    """

    layer: int | None
    name: str
    role: str


def places_of(value: Tensor, known: Sequence[Known]) -> tuple[ValuePlace, ...]:
    """Return every place that computes this value, or computes it as its last rows."""
    rows = metrics.rows(value)
    found = (
        ValuePlace(one.layer, one.part, one.role)
        for one in known
        if one.rows.ndim == 2
        and one.rows.shape[1] == rows.shape[1]
        and len(one.rows) >= len(rows)
        and one.rows.is_floating_point()
        and is_near(rows, one.rows[-len(rows) :].double())
    )
    return tuple(dict.fromkeys(found))


def identify(value: Tensor, known: list[Known], allowed: float = SAME) -> Known | None:
    """Return the known value whose rows, or their mean, this value equals, and which; else None."""
    tokens = (len(one.rows) for one in known if one.kind == "ids")
    counts = value.ndim == 1 and not value.is_floating_point() and 1 < len(value) in tokens
    if counts and torch.equal(value.long(), torch.arange(len(value))):
        return Known("positions", "the positions of the tokens, as integers", value)
    if not bool(value.any()):
        return None  # zeros identify nothing
    # A value's heads may have an axis: the heads of a token, joined, are its row.
    bare = value[0] if value.ndim == 4 and value.shape[0] == 1 else value
    heads = [bare, bare.transpose(0, 1)] if value.ndim > 2 else []
    forms = [metrics.rows(value), *(one.double().flatten(1) for one in heads)]
    values = [one for one in known if one.rows.ndim == 2]
    for match, one, rows in product((_which, _mean), values, forms):
        if (found := match(rows, one.rows, allowed)) is not None:
            return replace(one, held=found)
    return None


def _which(rows: Tensor, known: Tensor, allowed: float) -> str | None:
    """Return in words which rows of `known` these are, "" for all of them; None for none."""
    count, total = len(rows), len(known)
    if count > total or rows.shape[1] != known.shape[1]:
        return None  # a cheap test first: there are thousands of known values
    known = known.double()
    for start in (total - count, *range(total - count)):
        if is_near(rows, known[start : start + count], allowed):
            if count == total:
                return ""
            if start == total - count:
                return "the last token" if count == 1 else f"the last {count} tokens"
            return f"token {start}" if count == 1 else f"tokens {start} to {start + count - 1}"
    return None


def _mean(rows: Tensor, known: Tensor, allowed: float) -> str | None:
    """Return a description if this row is the mean over all rows of `known`, else None."""
    if len(rows) != 1 or len(known) < 2 or rows.shape[1] != known.shape[1]:
        return None
    found = is_near(rows, known.double().mean(dim=0, keepdim=True), allowed)
    return "all tokens, averaged" if found else None

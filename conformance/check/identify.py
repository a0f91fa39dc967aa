"""What a wrong value holds instead: which other value of the same forward it is, by its numbers.

In float32 two ways of computing the same agree to a millionth and different values not at all,
so a match is an identification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.records import Site

#: Relative distance up to which two values in float32 are one.
SAME = 1e-3


@dataclass(frozen=True)
class Known:
    """One value of transformers: `kind` for programs, words for people, rows [tokens, width]."""

    kind: str
    words: str
    rows: Tensor
    layer: int | None = None
    sequence: int = 0


@dataclass(frozen=True)
class Held:
    """What a value holds: `rows` says which of the known value's, "" for all."""

    kind: str
    words: str
    layer: int | None
    rows: str = ""
    sequence: int = 0


def catalogue(seen: Mapping[str, Tensor], layer_list: str) -> list[Known]:
    """Everything that transformers is known to have computed, the likelier first."""
    streams = [*_streams(seen, "layers"), *_streams(seen, "clean")]
    modules = sorted(_modules(seen, layer_list), key=_likelihood)
    halves = list(_halves(streams, modules))
    return streams + halves + modules


def _likelihood(known: Known) -> int:
    """The names that people have for a value before those of the parts that hand it on."""
    if known.kind in {"mlp", "attention", "logits"}:
        return 0
    if "final norm" in known.words or known.words == "the token embeddings":
        return 1
    return 2


def _streams(seen: Mapping[str, Tensor], kind: str) -> Iterator[Known]:
    for key, value in seen.items():
        begin, _, name = key.partition("|")
        if begin != kind:
            continue
        site = Site.parse(name)
        if site.name == "ids":
            yield Known("ids", "the token ids", value.reshape(-1, 1), sequence=site.prompt)
            continue
        edited = "" if kind == "layers" else ", without what the trace writes"
        step = f" in step {site.step}" if site.step else ""
        words = f"the residual stream after layer {site.layer}{step}{edited}"
        name = "stream" if kind == "layers" else "unedited"
        yield Known(name, words, value, site.layer, site.prompt)


def _modules(seen: Mapping[str, Tensor], layer_list: str) -> Iterator[Known]:
    inside = re.compile(re.escape(layer_list) + r"\.(\d+)(?:\.(.+))?")
    for key, value in seen.items():
        if not key.startswith("value|"):
            continue
        _, sequence, path, role = key.split("|")
        number = int(sequence)
        match = inside.fullmatch(path)
        if role == "logits":
            yield Known("logits", "the logits", value, sequence=number)
        elif match is None:
            yield Known(path, _outside(path, role), value, sequence=number)
        elif match[2] is None:
            continue  # a layer's own streams are known by now
        else:
            layer = int(match[1])
            kind, words = _part(match[2], role, layer)
            yield Known(kind, words, value, layer, number)


def _part(name: str, role: str, layer: int) -> tuple[str, str]:
    if role == "output" and name in {"mlp", "block_sparse_moe", "feed_forward"}:
        return "mlp", f"the MLP output of layer {layer} without the residual"
    if role == "output" and name in {"self_attn", "attn", "attention", "self_attention"}:
        return "attention", f"the attention output of layer {layer} without the residual"
    if "norm" in name or name.startswith("ln_"):
        what = "normed" if role == "output" else "not yet normed"
        return f"norm-{role}", f"the {what} {role} of {name} in layer {layer}"
    return name, f"the {role} of {name} in layer {layer}"


def _outside(path: str, role: str) -> str:
    last = path.rpartition(".")[2]
    if "norm" in last or last.startswith("ln_"):
        return f"the residual stream {'after' if role == 'output' else 'before'} the final norm"
    if last in {"embed_tokens", "wte", "word_embeddings"}:
        return "the token embeddings"
    if last in {"lm_head", "embed_out"} and role == "output":
        return "the logits"
    return f"the {role} of {path}"


def _halves(streams: list[Known], modules: list[Known]) -> Iterator[Known]:
    """What vLLM's layers return beside the MLP output: all that was added before."""
    whole = {(k.sequence, k.layer): k for k in streams if k.kind == "unedited"}
    for branch in modules:
        stream = whole.get((branch.sequence, branch.layer))
        if branch.kind == "mlp" and stream is not None and stream.rows.shape == branch.rows.shape:
            words = f"the residual of layer {branch.layer} without its MLP output"
            rows = stream.rows - branch.rows
            yield Known("residual", words, rows, branch.layer, branch.sequence)


def identify(value: Tensor, known: list[Known], allowed: float = SAME) -> Held | None:
    """Which known value this is, and which of its rows; None for none."""
    if _counts_up(value):
        return Held("positions", "the positions of the tokens, as integers", None)
    rows = value.reshape(1, -1) if value.ndim < 2 else value.reshape(-1, value.shape[-1])
    for one in known:
        if one.rows.ndim != 2 or one.rows.shape[1] != rows.shape[1]:
            continue
        which = _which(rows.double(), one.rows.double(), allowed)
        if which is not None:
            return Held(one.kind, one.words, one.layer, which, one.sequence)
    return None


def _counts_up(value: Tensor) -> bool:
    if value.ndim != 1 or value.is_floating_point() or len(value) < 2:
        return False
    return torch.equal(value.long(), torch.arange(len(value)) + int(value[0]))


def _which(rows: Tensor, known: Tensor, allowed: float) -> str | None:
    """Which rows of `known` these are: "" for all of them."""
    count, total = len(rows), len(known)
    if count == total:
        return "" if near(rows, known, allowed) else None
    if count > total:
        return None
    if near(rows, known[-count:], allowed):
        return "the last token" if count == 1 else f"the last {count} tokens"
    for start in range(total - count):
        if near(rows, known[start : start + count], allowed):
            return f"token {start}" if count == 1 else f"tokens {start} to {start + count - 1}"
    return None


def near(rows: Tensor, known: Tensor, allowed: float = SAME) -> bool:
    """Is every row the other's, to one part in a thousand of its length?"""
    size = known.norm(dim=-1)
    return bool(((rows - known).norm(dim=-1) <= allowed * size.clamp_min(1e-12)).all())

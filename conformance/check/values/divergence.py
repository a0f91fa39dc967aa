"""Find the first layer whose stream differs, and the write that explains it.

A read in the wrong place does not change the layers. A wrong write changes every layer from there
on, and the difference at the first of them shows what the write did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.check.values.known_values import Known, near
from conformance.judge.diagnosis.extent import ranges
from conformance.records import Site

_NONE: Mapping[Site, Tensor] = {}

#: The relative distance of a row in float32 above which a layer's stream differs.
OFF = 2e-3

#: The largest relative distance for a hypothesis on the two halves of a stream.
_HALVES = 5e-3

#: The effect of a write into only one of a stream's two halves, by kind.
_REACHED = {
    "first-half": "the write reached the MLP output only: the residual was left as it was",
    "second-half": "the write reached the residual only: the MLP output was left as it was",
}


@dataclass(frozen=True)
class Parting:
    """The first layer whose stream differs; `kind` and `words` say how, if that is known."""

    layer: int
    step: int
    sequence: int
    tokens: tuple[int, ...]
    total: int
    kind: str = ""
    words: str = ""

    def place(self) -> str:
        which = "every token" if len(self.tokens) == self.total else _named(self.tokens)
        step = f", step {self.step}" if self.step else ""
        return f"layer {self.layer}{step} ({which})"


def _named(tokens: Sequence[int]) -> str:
    return f"token{'s' if len(tokens) > 1 else ''} {ranges(tokens)}"


def _rows(which: Tensor) -> tuple[int, ...]:
    return tuple(torch.nonzero(which).flatten().tolist())


def _off(rows: Tensor, other: Tensor) -> Tensor:
    """Return which rows differ, as bool [tokens]."""
    found: Tensor = (rows - other).norm(dim=-1) > OFF * other.norm(dim=-1).clamp_min(1e-6)
    return found


def pairs(mine: Mapping[Site, Tensor], truth: Mapping[Site, Tensor]) -> dict[int, int]:
    """Map the engine's sequences to transformers' ones with the same prompt ids, in order."""
    waiting = _prompts(truth)
    return {
        sequence: waiting[ids].pop(0)
        for ids, sequences in _prompts(mine).items()
        for sequence in sequences[: len(waiting[ids])]
    }


def _prompts(seen: Mapping[Site, Tensor]) -> dict[tuple[int, ...], list[int]]:
    """Return the sequences of each prompt, by the prompt's ids."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for site in sorted(seen, key=lambda one: one.prompt):
        if site.name == "ids" and not site.step:
            found[tuple(seen[site].tolist())].append(site.prompt)
    return found


def parting(
    mine: Mapping[Site, Tensor],
    truth: Mapping[Site, Tensor],
    known: list[Known],
    natural: Mapping[Site, Tensor] = _NONE,
) -> Parting | None:
    """Return the first difference of the streams, by step, sequence and layer. `natural` are the
    streams as transformers' layers returned them in the edited run. If they differ from the clean
    run's, an earlier write has changed the layer, and the difference there explains nothing.
    """
    apart = _first_apart(mine, truth)
    if apart is None:
        return None
    site, other = apart
    ours, theirs = mine[site].double(), truth[other].double()
    far = _off(ours, theirs)
    part = Parting(site.layer or 0, site.step, other.prompt, _rows(far), len(ours))
    clean = _clean(other, known)
    base = clean.get("unedited", ours[:0])
    if base.shape != ours.shape or bool(_changed(natural.get(other, base), base).any()):
        return part
    made, meant = _off(ours, base), _off(theirs, base)
    if bool(made.any()) and bool(meant.any()):
        own = {name: rows[far] for name, rows in clean.items() if len(rows) == len(far)}
        kind, words = _other_tokens(made, meant, far) or _explained(ours[far], theirs[far], own)
        return replace(part, kind=kind, words=words)
    # In later steps, attention carries earlier writes on, so layers explain nothing there.
    if not site.step:
        wrote = _first_written(mine, site.prompt, part, known)
        due = _first_written(truth, other.prompt, part, known)
        if wrote is not None and due is not None:
            words = f"the write is at layer {wrote}, and on transformers at layer {due}"
            return replace(part, kind="other-layer", words=words)
    step = f" in step {site.step}" if any(one.step for one in truth) else ""
    if not bool(made.any()):
        return replace(part, kind="dropped", words=f"the write had no effect{step}")
    words = f"on transformers nothing is written{step}"
    return replace(part, kind="elsewhere", words=words)


def _changed(rows: Tensor, clean: Tensor) -> Tensor:
    """Return which rows differ from the clean run's, as bool [tokens]; none if shapes differ."""
    same = rows.shape == clean.shape
    return _off(rows.double(), clean.double()) if same else torch.zeros(len(rows), dtype=torch.bool)


def _first_apart(
    mine: Mapping[Site, Tensor], truth: Mapping[Site, Tensor]
) -> tuple[Site, Site] | None:
    """Return the first site at which the two sides differ, on the engine and on transformers."""
    same = pairs(mine, truth)
    sites = [site for site in mine if site.name == "stream" and site.prompt in same]
    for site in sorted(sites, key=lambda one: (one.step, one.prompt, one.layer or 0)):
        other = replace(site, prompt=same[site.prompt])
        theirs = truth.get(other)
        if theirs is not None and bool(_changed(mine[site], theirs).any()):
            return site, other
    return None


def _clean(site: Site, known: list[Known]) -> dict[str, Tensor]:
    """Return what a layer computes in the clean run, by kind; `unedited` is the stream."""
    place = _first_alike(site.prompt, known), site.layer, site.step
    found: dict[str, Tensor] = {}
    for one in known:
        if (one.sequence, one.layer, one.step) == place and not one.written:
            found.setdefault(one.kind, one.rows.double())
    return found


def _other_tokens(made: Tensor, meant: Tensor, far: Tensor) -> tuple[str, str] | None:
    """Return kind and words if a write reached different tokens. Arguments are bool [tokens]."""
    if not bool((made & meant).any()):
        words = f"the write reached {_named(_rows(made))} instead of {_named(_rows(meant))}"
        return "other-tokens", words
    if not bool((far & made).any()):
        words = f"the write had no effect there: it reached {_named(_rows(made))} alone"
        return "partial", words
    if not bool((far & meant).any()):
        words = f"the write reached {_named(_rows(far))} too, which it does not on transformers"
        return "too-many", words
    return None


def _first_written(
    streams: Mapping[Site, Tensor], sequence: int, part: Parting, known: list[Known]
) -> int | None:
    """Return the first layer at which a sequence's stream differs from the clean run's."""
    alike = _first_alike(part.sequence, known)
    for one in sorted(known, key=lambda each: each.layer or 0):
        if (one.kind, one.sequence, one.step) != ("unedited", alike, part.step):
            continue
        rows = streams.get(Site("stream", prompt=sequence, step=part.step, layer=one.layer))
        if rows is not None and bool(_changed(rows, one.rows).any()):
            return one.layer
    return None


def _explained(ours: Tensor, theirs: Tensor, clean: Mapping[str, Tensor]) -> tuple[str, str]:
    """Return kind and words for a write of both sides, from the differing rows [tokens, width]."""
    if "mlp" in clean and "residual" in clean:
        half = _half(ours, theirs, clean["mlp"], clean["residual"])
        if half:
            return half, _REACHED[half]
    return _gained(theirs - clean["unedited"], ours - clean["unedited"])


def _gained(meant: Tensor, made: Tensor) -> tuple[str, str]:
    """Return kind and words for the size of a change, compared with the intended one."""
    along = float((made * meant).sum())
    gain = along / float(meant.square().sum().clamp_min(1e-30))
    if (made - gain * meant).norm() > 0.01 * made.norm():
        size = float(made.norm() / meant.norm().clamp_min(1e-30))
        cosine = along / float((made.norm() * meant.norm()).clamp_min(1e-30))
        return (
            "",
            f"the write makes another change, {size:.2g} times as large (cosine {cosine:.2f})",
        )
    if abs(gain - 2) < 0.01:
        return "twice", "the change was made twice: once in each half of the stream"
    return "scaled", f"the change is {gain:.3g} times what it is on transformers"


def _first_alike(sequence: int, known: list[Known]) -> int:
    """Return the first sequence with the same tokens, the only one with clean values."""
    ids: dict[int, list[Tensor]] = {}
    for one in known:
        if one.kind == "ids":
            ids.setdefault(one.sequence, []).append(one.rows.flatten())
    tokens = {number: torch.cat(rows).tolist() for number, rows in ids.items()}
    mine = tokens.get(sequence)
    return min((number for number, one in tokens.items() if one == mine), default=sequence)


def _half(ours: Tensor, theirs: Tensor, branch: Tensor, residual: Tensor) -> str:
    """Return which half a write of the whole stream replaced or scaled alone, "" for neither."""
    whole = branch + residual
    scale = float((theirs * whole).sum() / whole.square().sum())
    scaled = bool((theirs - scale * whole).norm() <= 1e-3 * theirs.norm())
    for kind, own, left in (("first-half", branch, residual), ("second-half", residual, branch)):
        half_scaled = scaled and near(ours, scale * own + left, _HALVES)
        if half_scaled or near(ours, theirs + left, _HALVES):
            return kind
    return ""

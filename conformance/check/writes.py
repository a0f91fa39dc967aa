"""Since which layer the model itself computes something else, and which write explains that.

A value that is read in the wrong place leaves the layers as they are. A write that lands
otherwise changes every layer from there on, and how it changes the first says what it did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.check.identify import Known, near
from conformance.judge.diagnosis.extent import ranges
from conformance.records import Site

#: Relative distance of a row in float32 beyond which a layer computes something else.
OFF = 2e-3

#: How near a guess about the two halves of a stream must come.
_HALVES = 5e-3


@dataclass(frozen=True)
class Parting:
    """The first layer whose stream differs: `kind` and words say how, where that is known."""

    layer: int
    step: int
    sequence: int
    tokens: tuple[int, ...]
    total: int
    kind: str = ""
    words: str = ""

    def place(self) -> str:
        which = "every token" if len(self.tokens) == self.total else f"token {ranges(self.tokens)}"
        step = f", step {self.step}" if self.step else ""
        return f"layer {self.layer}{step} ({which})"


def pairs(mine: Mapping[Site, Tensor], truth: Mapping[Site, Tensor]) -> dict[int, int]:
    """Which sequence of the engine is which of transformers': by the prompt's ids, in order."""
    waiting: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for sequence, ids in sorted(_prompts(truth).items()):
        waiting[ids].append(sequence)
    found = {}
    for sequence, ids in sorted(_prompts(mine).items()):
        if waiting[ids]:
            found[sequence] = waiting[ids].pop(0)
    return found


def _prompts(seen: Mapping[Site, Tensor]) -> dict[int, tuple[int, ...]]:
    return {
        site.prompt: tuple(ids.tolist())
        for site, ids in seen.items()
        if site.name == "ids" and not site.step
    }


def parting(
    mine: Mapping[Site, Tensor], truth: Mapping[Site, Tensor], known: list[Known]
) -> Parting | None:
    """The first layer, of the first step and sequence, in which the two sides part."""
    same = pairs(mine, truth)
    sites = [site for site in mine if site.name == "stream" and site.prompt in same]
    for site in sorted(sites, key=lambda one: (one.step, one.prompt, one.layer or 0)):
        other = Site("stream", prompt=same[site.prompt], step=site.step, layer=site.layer)
        ours, theirs = mine[site], truth.get(other)
        if theirs is None or ours.shape != theirs.shape:
            continue
        off = (ours.double() - theirs.double()).norm(dim=-1)
        far = off > OFF * theirs.double().norm(dim=-1).clamp_min(1e-6)
        if bool(far.any()):
            tokens = tuple(torch.nonzero(far).flatten().tolist())
            kind, words = _explained(ours.double(), theirs.double(), far, other, known)
            layer = site.layer or 0
            return Parting(layer, site.step, other.prompt, tokens, len(ours), kind, words)
    return None


def _explained(
    ours: Tensor, theirs: Tensor, far: Tensor, site: Site, known: list[Known]
) -> tuple[str, str]:
    """What the write did, from the layer with and without it: [tokens, width] each."""
    by_kind = {
        one.kind: one.rows.double()
        for one in known
        if (one.sequence, one.layer) == (_first_alike(site, known), site.layer)
        and one.rows.shape == ours.shape
    }
    clean = by_kind.get("unedited")
    if clean is None or site.step:
        return "", ""
    if near(theirs[far], clean[far]):
        return "elsewhere", "on transformers nothing is written up to this layer"
    if near(ours[far], clean[far]):
        whole = bool(far.all())
        words = "the write had no effect" + ("" if whole else " there")
        return ("dropped" if whole else "partial"), words
    halved = None
    if "mlp" in by_kind and "residual" in by_kind:
        halved = _half(ours[far], theirs[far], by_kind["mlp"][far], by_kind["residual"][far])
    return halved or _gained((theirs - clean)[far], (ours - clean)[far])


def _gained(meant: Tensor, made: Tensor) -> tuple[str, str]:
    """Is the change that was made a multiple of the one that was meant?"""
    gain = float((made * meant).sum() / meant.square().sum().clamp_min(1e-30))
    if (made - gain * meant).norm() > 0.01 * made.norm():
        return "", ""
    if abs(gain - 2) < 0.01:
        return "twice", "the change was made twice: once in each half of the stream"
    return "scaled", f"the change is {gain:.3g} times what it is on transformers"


def _first_alike(site: Site, known: list[Known]) -> int:
    """Equal prompts are computed without a write once: at the first of them."""
    ids = {one.sequence: tuple(one.rows.flatten().tolist()) for one in known if one.kind == "ids"}
    mine = ids.get(site.prompt)
    return min((s for s, prompt in ids.items() if prompt == mine), default=site.prompt)


def _half(ours: Tensor, theirs: Tensor, branch: Tensor, residual: Tensor) -> tuple[str, str] | None:
    """Was a value for the whole stream put in place of one of its summands, or one scaled?"""
    scale = float((theirs * (branch + residual)).sum() / (branch + residual).square().sum())
    scaled = bool((theirs - scale * (branch + residual)).norm() <= 1e-3 * theirs.norm())
    first = "the write reached the MLP output only: the residual was left as it was"
    second = "the write reached the residual only: the MLP output was left as it was"
    for kind, words, own, left in (
        ("first-half", first, branch, residual),
        ("second-half", second, residual, branch),
    ):
        replaced = near(ours, theirs + left, _HALVES)
        if replaced or (scaled and near(ours, scale * own + left, _HALVES)):
            return kind, words
    return None

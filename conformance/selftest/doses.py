"""Faults of a known size, put into what an honest cell observed.

The effect a little too large or too small, a part of it in another direction, a part of it at a
token to which nothing is written. A fault of the write begins where the write is first seen, a
`later` one at some layer after it; both go on through all that is observed further on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from conformance.judge import judgement as verdict
from conformance.judge.measures import metrics
from conformance.judge.measures.gain import UNTOUCHED
from conformance.records import Site
from conformance.records.injected import Kind


class Cell(Protocol):
    """What a fault is put into: what was observed, and the truth of both runs by site."""

    @property
    def observed(self) -> Mapping[str, Tensor]: ...

    @property
    def truth_values(self) -> Mapping[Site, Tensor]: ...


T = TypeVar("T")
#: Observations with a fault of a dose.
Fault = Callable[[float], Mapping[str, Tensor]]


class Chance:
    """Draws that are the same in every process."""

    def __init__(self, words: str) -> None:
        self._source = torch.Generator().manual_seed(zlib.crc32(words.encode()))

    def choice(self, among: Sequence[T]) -> T:
        return among[int(torch.randint(len(among), (1,), generator=self._source))]


def fault(cell: Cell, kind: Kind, chance: Chance) -> Fault | None:
    """A fault on one prompt; None where the cell has no place for it."""
    start = _start(cell, kind, chance)
    if start is None:
        return None
    after = [
        site
        for site in pairs(cell)
        if site.prompt == start.prompt and verdict.depth(site) >= verdict.depth(start)
    ]
    sign, seed = chance.choice((-1, 1)), chance.choice(range(1 << 30))
    spared = torch.nonzero(~touched(cell, start)).flatten().tolist()
    if kind.fault is Kind.LEAK and not spared:
        return None
    row = chance.choice(spared) if kind.fault is Kind.LEAK else 0

    def faulty(dose: float) -> Mapping[str, Tensor]:
        changed = dict(cell.observed)
        noise = torch.Generator().manual_seed(seed)
        for site in after:
            edited, clean = cell.observed[str(site)], cell.observed[str(clean_twin(site))]
            effect = metrics.rows(edited) - metrics.rows(clean)
            hit = touched(cell, site)
            if kind.fault is Kind.GAIN:
                added = sign * dose * effect
            elif kind.fault is Kind.OFF_AXIS:
                added = dose * _at_right_angles(effect, noise) * hit.unsqueeze(-1)
            else:
                added = torch.zeros_like(effect)
                if row < len(hit) and hit.any() and not hit[row]:
                    added[row] = dose * effect[hit].mean(dim=0)
            moved = metrics.rows(edited) + added
            changed[str(site)] = moved.reshape(edited.shape).to(edited.dtype)
        return changed

    return faulty


def _start(cell: Cell, kind: Kind, chance: Chance) -> Site | None:
    """Where a fault begins: where a prompt's write is first seen, or at a layer after that."""
    changed = [site for site in pairs(cell) if bool(touched(cell, site).any())]
    streams = [site for site in changed if site.name != "logits"] or changed
    if not streams:
        return None
    prompt = chance.choice(sorted({site.prompt for site in streams}))
    own = [site for site in streams if site.prompt == prompt]
    first = min(verdict.depth(site) for site in own)
    places = [site for site in own if (verdict.depth(site) > first) is kind.later]
    return chance.choice(places) if places else None


def _at_right_angles(effect: Tensor, noise: torch.Generator) -> Tensor:
    """As long as the effect, at right angles to it."""
    across = torch.randn(effect.shape, generator=noise, dtype=effect.dtype)
    size = torch.linalg.vecdot(effect, effect).clamp_min(1e-300).unsqueeze(-1)
    across = across - torch.linalg.vecdot(across, effect).unsqueeze(-1) / size * effect
    turned: Tensor = across / across.norm(dim=-1, keepdim=True) * effect.norm(dim=-1, keepdim=True)
    return turned


def pairs(cell: Cell) -> list[Site]:
    """Observations of numbers that both runs have, in one shape."""
    truth = cell.truth_values
    return [
        site
        for site in sorted(truth, key=verdict.order)
        if site.run == "edited"
        and truth[site].is_floating_point()
        and (clean := clean_twin(site)) in truth
        and truth[clean].shape == truth[site].shape
    ]


def clean_twin(site: Site) -> Site:
    return replace(site, run="clean")


def touched(cell: Cell, site: Site) -> Tensor:
    """The rows that the truth's write changes."""
    truth = cell.truth_values
    before, after = metrics.rows(truth[clean_twin(site)]), metrics.rows(truth[site])
    changed: Tensor = (after - before).norm(dim=-1) > UNTOUCHED * before.norm(dim=-1)
    return changed

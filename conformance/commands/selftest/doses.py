"""Put faults of a known size into the observations of a fault-free cell.

Faults of a write: an effect that is a little too large or too small, a part of it in another
direction, or a part of it at a token that is not written. A fault of the write begins where the
write is first seen, a `later` one at some layer after it; both continue in all later observations.

Faults of a served value: an error in every row of the value or in one, wherever the value is
observed. The dose is a share of the row's length, with rows compared as the judge does: without
massive dimensions, and logits without their mean.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from conformance.judge.cell import judgement as verdict
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.measures.gain import UNTOUCHED
from conformance.judge.cell.measures.relations import same_bits
from conformance.judge.cell.reference import ReferenceRuns
from conformance.spec.records import Site
from conformance.spec.records.injected import Kind


@dataclass(frozen=True)
class DosedCell:
    """What a fault is put into: the observations of a cell, and the reference of both runs."""

    observed: Mapping[str, Tensor]
    reference: ReferenceRuns


T = TypeVar("T")
#: Replaces a length of zero as a divisor.
_NOTHING = 1e-300
#: Returns the observations with a fault of the given dose.
Fault = Callable[[float], Mapping[str, Tensor]]


class Chance:
    """Random draws that are the same in every process."""

    def __init__(self, words: str) -> None:
        self._source = torch.Generator().manual_seed(zlib.crc32(words.encode()))

    def choice(self, among: Sequence[T]) -> T:
        return among[int(torch.randint(len(among), (1,), generator=self._source))]

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.choice(range(1 << 30)))


def fault(cell: DosedCell, kind: Kind, chance: Chance) -> Fault | None:
    """Return a fault of a write on one prompt, or of one served value; None if the cell has no
    place for it.
    """
    errors = (_errors_of_write if kind.of_write else _errors_of_served)(cell, kind, chance)
    if errors is None:
        return None

    def faulty(dose: float) -> Mapping[str, Tensor]:
        changed = dict(cell.observed)
        for name, error in errors.items():
            value = cell.observed[name]
            moved = metrics.rows(value) + dose * error
            changed[name] = moved.reshape(value.shape).to(value.dtype)
        return changed

    return faulty


def _errors_of_write(cell: DosedCell, kind: Kind, chance: Chance) -> dict[str, Tensor] | None:
    """Return what a dose of 1 adds to the rows of each observation, from the fault's start on."""
    start = _start(cell, kind, chance)
    if start is None:
        return None
    sign, noise = chance.choice((-1, 1)), chance.generator()
    spared = torch.nonzero(~touched(cell, start)).flatten().tolist()
    if kind.fault is Kind.LEAK and not spared:
        return None
    row = chance.choice(spared) if kind.fault is Kind.LEAK else 0
    errors = {}
    for site in pairs(cell):
        if site.prompt != start.prompt or verdict.depth(site) < verdict.depth(start):
            continue
        hit, effect = touched(cell, site), _effect(cell, site)
        if kind.fault is Kind.GAIN:
            error = sign * effect
        elif kind.fault is Kind.OFF_AXIS:
            error = _at_right_angles(effect, noise) * hit.unsqueeze(-1)
        else:
            error = torch.zeros_like(effect)
            if row < len(hit) and hit.any() and not hit[row]:
                error[row] = effect[hit].mean(dim=0)
        errors[str(site)] = error
    return errors


def _errors_of_served(cell: DosedCell, kind: Kind, chance: Chance) -> dict[str, Tensor] | None:
    """Return what a dose of 1 adds to the rows of one value, and to its copies: copies that differ
    are another fault, seen by the bits.
    """
    places = [site for site in _numbers(cell) if bool(_lengths(cell, site).any())]
    if not places:
        return None
    place, noise = chance.choice(places), chance.generator()
    value, lengths = cell.observed[str(place)], _lengths(cell, place)
    if kind is Kind.SERVED_ROW:
        row = chance.choice(torch.nonzero(lengths).flatten().tolist())
        lengths = torch.zeros_like(lengths).index_fill(0, torch.tensor(row), lengths[row])
    error = _random(metrics.rows(value), noise) * cell.reference.floor(place).bulk
    error = error / error.norm(dim=-1, keepdim=True).clamp_min(_NOTHING) * lengths.unsqueeze(-1)
    return {
        name: error
        for name in map(str, _numbers(cell))
        if same_bits({"": value}, {"": cell.observed[name]})
    }


def _numbers(cell: DosedCell) -> list[Site]:
    """Return the sites of finite observations whose shape matches the reference's."""
    reference = cell.reference.reference_values
    return [
        site
        for site in sorted(reference, key=verdict.order)
        if reference[site].is_floating_point()
        and (observed := cell.observed.get(str(site))) is not None
        and observed.shape == reference[site].shape
        and bool(torch.isfinite(observed).all() and torch.isfinite(reference[site]).all())
    ]


def _lengths(cell: DosedCell, site: Site) -> Tensor:
    """Return the lengths of the reference's rows; 0 for a row that must be exactly zero."""
    noise_floor = cell.reference.floor(site)
    return noise_floor.scale.masked_fill(noise_floor.zero, 0.0)


def _start(cell: DosedCell, kind: Kind, chance: Chance) -> Site | None:
    """Return where a fault begins: where a prompt's write is first seen, or at a later layer."""
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
    """Return a random vector as long as the effect and orthogonal to it."""
    across = _random(effect, noise)
    size = torch.linalg.vecdot(effect, effect).clamp_min(_NOTHING).unsqueeze(-1)
    across = across - torch.linalg.vecdot(across, effect).unsqueeze(-1) / size * effect
    turned: Tensor = across / across.norm(dim=-1, keepdim=True) * effect.norm(dim=-1, keepdim=True)
    return turned


def _random(like: Tensor, noise: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=noise, dtype=like.dtype)


def pairs(cell: DosedCell) -> list[Site]:
    """Return the sites of numbers that both runs have in the same shape."""
    reference = cell.reference.reference_values
    return [
        site
        for site in sorted(reference, key=verdict.order)
        if site.run == "edited"
        and reference[site].is_floating_point()
        and (clean := clean_site(site)) in reference
        and reference[clean].shape == reference[site].shape
    ]


def clean_site(site: Site) -> Site:
    return replace(site, run="clean")


def touched(cell: DosedCell, site: Site) -> Tensor:
    """Return the rows that the reference's write changes."""
    before = metrics.rows(cell.reference.reference_values[clean_site(site)])
    changed: Tensor = _effect(cell, site).norm(dim=-1) > UNTOUCHED * before.norm(dim=-1)
    return changed


def _effect(cell: DosedCell, site: Site) -> Tensor:
    """Return the write's effect in the reference; the observed effect in bf16 is mostly noise."""
    reference = cell.reference.reference_values
    return metrics.rows(reference[site]) - metrics.rows(reference[clean_site(site)])

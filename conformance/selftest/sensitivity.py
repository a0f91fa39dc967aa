"""How small a fault of a write may be and still be found: the detection limit of each cell.

Faults of known size are put into the stored observations of honest cells, and the ordinary judge
judges them: the write's effect a little too large or too small (`gain`), a part of it in another
direction (`off-axis`), a part of it at a token to which nothing is written (`leak`). A dose is a
share of the write's effect where it is observed. A trial begins at a layer and in a sign or
direction of its own, and goes on through all that is observed later; the smallest dose that is
found is looked for by halving. What no dose up to the whole effect shows stays in the table.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import torch
from torch import Tensor

from conformance.judge import judgement as verdict
from conformance.judge.cell import judge_cell
from conformance.judge.measures import metrics
from conformance.judge.measures.gain import UNTOUCHED
from conformance.judge.measures.relations import same_bits
from conformance.records import (
    Backend,
    Case,
    Model,
    Precision,
    Site,
    Status,
    Thresholds,
    record,
)
from conformance.scenario import Scenario
from conformance.store import RunFolder, gathered_in
from conformance.verdicts.one_model import model_info
from conformance.verdicts.truths import Truth, Truths

#: Doses are powers of two, from a millionth of the effect to all of it.
_FINEST = 20
#: In float32 every write must be held to this share of its effect, or to this share of the stream
#: where that is more: small doses have effects that are not far above what float32 rounds.
BAR, OF_STREAM = 1e-3, 1e-4
TRIALS = 10


class Kind(StrEnum):
    GAIN = "gain"
    OFF_AXIS = "off-axis"
    LEAK = "leak"


@record()
class Limit:
    """The doses found in half and in 95 % of the trials of one cell; None where none was. `size`
    is the write's effect where it is first seen, as a share of the stream there.
    """

    model: str
    backend: str
    scenario: str
    case: str
    precision: Precision
    kind: Kind
    trials: int
    half: float | None
    most: float | None
    size: float

    @property
    def holds(self) -> bool:
        return self.most is not None and self.most <= max(BAR, OF_STREAM / self.size)


@dataclass(frozen=True)
class _Cell:
    """An honest cell: what was observed, and what it is judged by."""

    observed: Mapping[str, Tensor]
    prompt_ids: tuple[tuple[int, ...], ...]
    truth: Truth
    equal: Sequence[tuple[str, str]]
    bitwise: bool

    def passes(self, observed: Mapping[str, Tensor], thresholds: Thresholds) -> bool:
        judgement = judge_cell(
            observed,
            self.truth.reference,
            twin=True,
            equal=self.equal,
            prompt_ids=self.prompt_ids,
            truth_ids=self.truth.prompt_ids,
            limits=thresholds.of(self.truth.reference.precision),
            explain=False,
            bitwise=self.bitwise,
        )
        return judgement.verdict.passes


def limits(
    run: RunFolder,
    model: Model,
    backends: Sequence[Backend],
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    *,
    precision: Precision = Precision.FLOAT32,
    trials: int = TRIALS,
    wanted: Callable[[Case], bool] = lambda _: True,
) -> list[Limit]:
    """The limits of every honest cell of a stored run that has a write and passes."""
    layers = model_info(run, model).layers
    found: list[Limit] = []
    for scenario in scenarios.values():
        for case in scenario.expand(layers) if layers else ():
            if scenario.twin(case) and wanted(case):
                given = (run, model, backends, scenario, case, thresholds)
                found += _of_case(*given, precision=precision, trials=trials)
    return found


def broken(found: Sequence[Limit]) -> list[str]:
    """What of float32 is beyond the bar, in words, the worst first."""
    beyond = [limit for limit in found if limit.precision is Precision.FLOAT32 and not limit.holds]
    beyond.sort(key=lambda limit: -(limit.most or math.inf))
    return [
        f"{limit.kind} of {max(BAR, OF_STREAM / limit.size):.1e} found in 95 % of the trials of "
        f"{limit.scenario}.{limit.case} on {limit.model} × {limit.backend}: {shown(limit.most)}"
        for limit in beyond
    ]


def shown(dose: float | None) -> str:
    return "not even the whole effect" if dose is None else f"{dose:.1e}"


def _of_case(
    run: RunFolder,
    model: Model,
    backends: Sequence[Backend],
    scenario: Scenario,
    case: Case,
    thresholds: Thresholds,
    *,
    precision: Precision,
    trials: int,
) -> Iterator[Limit]:
    truths = Truths(run, model.id, case, twin=True, precision=precision)
    known: list[tuple[Mapping[str, Tensor], list[Limit]]] = []
    for backend in backends:
        folder = gathered_in(backend.id, precision)
        outcome = run.outcome(model.id, folder, case.key)
        if outcome is None or outcome.status is not Status.OK:
            continue
        observed = run.observations(model.id, folder, case.key)
        # Judging is pure: what holds of these very bits is known.
        same = next((limits for bits, limits in known if same_bits(bits, observed)), None)
        if same is None:
            truth = truths.along(observed)
            if isinstance(truth, str):
                continue
            group = run.group(model.id, folder)
            on_cpu = group is not None and group.identity.get("device") == "cpu"
            given = (observed, outcome.prompt_ids, truth, scenario.equal(case))
            cell = _Cell(*given, bitwise=on_cpu)
            same = _of_cell(cell, case, thresholds, trials)
            known.append((observed, same))
        yield from (replace(limit, model=model.id, backend=backend.id) for limit in same)


def _of_cell(cell: _Cell, case: Case, thresholds: Thresholds, trials: int) -> list[Limit]:
    """Of each kind that the cell can have; nothing of a cell that does not pass as it is."""
    if not cell.passes(cell.observed, thresholds):
        return []
    found = []
    size = _size(cell)
    for kind in Kind:
        chances = [_Chance(f"{case.key} {kind} {number}") for number in range(trials)]
        faults = [_fault(cell, kind, chance) for chance in chances]
        possible = [fault for fault in faults if fault is not None]
        doses = sorted(_smallest(cell, fault, thresholds) for fault in possible)
        if doses:
            precision = cell.truth.reference.precision
            half, most = (_found_in(doses, share) for share in (0.5, 0.95))
            given = ("m", "b", case.scenario, case.name, precision, kind, len(doses))
            found.append(Limit(*given, half, most, size))
    return found


def _size(cell: _Cell) -> float:
    """How large the effect is at the median row that is first changed, as a share of the row."""
    truth = cell.truth.reference.truth
    changed = [site for site in _pairs(cell) if bool(_touched(cell, site).any())]
    if not changed:
        return 1.0
    first = min(changed, key=verdict.depth)
    before, after = metrics.rows(truth[_clean(first)]), metrics.rows(truth[first])
    shares = metrics.ratio((after - before).norm(dim=-1), before.norm(dim=-1))
    return float(shares[_touched(cell, first)].median())


def _found_in(doses: Sequence[float], share: float) -> float | None:
    """The dose that was enough in this share of the trials."""
    dose = doses[math.ceil(share * len(doses)) - 1]
    return None if math.isinf(dose) else dose


T = TypeVar("T")
#: Observations with a fault of a dose.
Fault = Callable[[float], Mapping[str, Tensor]]


def _smallest(cell: _Cell, fault: Fault, thresholds: Thresholds) -> float:
    """The smallest dose that is found, by halving; infinite where the whole effect is not."""

    def found(exponent: int) -> bool:
        return not cell.passes(fault(2.0**-exponent), thresholds)

    if not found(0):
        return math.inf
    low, high = 0, _FINEST + 1  # found at low, taken as not found at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if found(middle) else (low, middle)
    return float(2.0**-low)


class _Chance:
    """Draws that are the same in every process."""

    def __init__(self, words: str) -> None:
        self._source = torch.Generator().manual_seed(zlib.crc32(words.encode()))

    def choice(self, among: Sequence[T]) -> T:
        return among[int(torch.randint(len(among), (1,), generator=self._source))]


def _fault(cell: _Cell, kind: Kind, chance: _Chance) -> Fault | None:
    """A fault that begins somewhere on one prompt; None where the cell has no place for it."""
    changed = [site for site in _pairs(cell) if bool(_touched(cell, site).any())]
    streams = [site for site in changed if site.name != "logits"] or changed
    if not streams:
        return None
    start = chance.choice(streams)
    after = [
        site
        for site in _pairs(cell)
        if site.prompt == start.prompt and verdict.depth(site) >= verdict.depth(start)
    ]
    sign, seed = chance.choice((-1, 1)), chance.choice(range(1 << 30))
    spared = torch.nonzero(~_touched(cell, start)).flatten().tolist()
    if kind is Kind.LEAK and not spared:
        return None
    row = chance.choice(spared) if kind is Kind.LEAK else 0

    def faulty(dose: float) -> Mapping[str, Tensor]:
        changed = dict(cell.observed)
        noise = torch.Generator().manual_seed(seed)
        for site in after:
            edited, clean = cell.observed[str(site)], cell.observed[str(_clean(site))]
            effect = metrics.rows(edited) - metrics.rows(clean)
            hit = _touched(cell, site)
            if kind is Kind.GAIN:
                added = sign * dose * effect
            elif kind is Kind.OFF_AXIS:
                added = dose * _elsewhere(effect, noise) * hit.unsqueeze(-1)
            else:
                added = torch.zeros_like(effect)
                if row < len(hit) and hit.any() and not hit[row]:
                    added[row] = dose * effect[hit].mean(dim=0)
            moved = metrics.rows(edited) + added
            changed[str(site)] = moved.reshape(edited.shape).to(edited.dtype)
        return changed

    return faulty


def _elsewhere(effect: Tensor, noise: torch.Generator) -> Tensor:
    """As long as the effect, at right angles to it."""
    other = torch.randn(effect.shape, generator=noise, dtype=effect.dtype)
    size = torch.linalg.vecdot(effect, effect).clamp_min(1e-300).unsqueeze(-1)
    other = other - torch.linalg.vecdot(other, effect).unsqueeze(-1) / size * effect
    turned: Tensor = other / other.norm(dim=-1, keepdim=True) * effect.norm(dim=-1, keepdim=True)
    return turned


def _pairs(cell: _Cell) -> list[Site]:
    """Observations of numbers that both runs have, in one shape."""
    truth = cell.truth.reference.truth
    return [
        site
        for site in sorted(truth, key=verdict.order)
        if site.run == "edited"
        and truth[site].is_floating_point()
        and (clean := _clean(site)) in truth
        and truth[clean].shape == truth[site].shape
    ]


def _clean(site: Site) -> Site:
    return replace(site, run="clean")


def _touched(cell: _Cell, site: Site) -> Tensor:
    """The rows that the truth's write changes."""
    truth = cell.truth.reference.truth
    before, after = metrics.rows(truth[_clean(site)]), metrics.rows(truth[site])
    touched: Tensor = (after - before).norm(dim=-1) > UNTOUCHED * before.norm(dim=-1)
    return touched

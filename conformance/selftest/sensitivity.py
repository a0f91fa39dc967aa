"""How small a fault of a write may be and still be found: the detection limit of each cell.

Faults of known size are put into the stored observations of honest cells, and the ordinary judge
judges them: the write's effect a little too large or too small (`gain`), a part of it in another
direction (`off-axis`), a part of it at a token to which nothing is written (`leak`). A dose is a
share of the write's effect where it is observed. A fault of the write begins where the write is
first seen, a `later` one at some layer after it; both go on through all that is observed further
on. A trial has a prompt, a sign or direction and a layer of its own, and the smallest dose that is
found is looked for by halving. What no dose up to the whole effect shows stays in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from conformance.judge import judgement as verdict
from conformance.judge.cell import judge_cell
from conformance.judge.measures import metrics
from conformance.judge.measures.relations import same_bits
from conformance.records import (
    Backend,
    Case,
    Model,
    Precision,
    Site,
    Status,
    Thresholds,
)
from conformance.records.injected import OF_STREAM, Kind, Limit
from conformance.scenario import Scenario
from conformance.selftest import doses
from conformance.selftest.doses import Chance, Fault, clean_twin, pairs, touched
from conformance.store import RunFolder, gathered_in
from conformance.verdicts.one_model import model_info
from conformance.verdicts.truths import Truth, Truths

#: Doses are powers of two and quarters of them, from a millionth of the effect to all of it.
_FINEST, _STEPS = 20, 4
#: Of a deep or wide model the roundings themselves come to more, and this many times that counts:
#: the factor that any value in float32 is allowed.
ROUNDINGS = 100.0
TRIALS = 10


@dataclass(frozen=True)
class _Cell:
    """An honest cell: what was observed, and what it is judged by."""

    observed: Mapping[str, Tensor]
    prompt_ids: tuple[tuple[int, ...], ...]
    truth: Truth
    equal: Sequence[tuple[str, str]]
    bitwise: bool

    @property
    def truth_values(self) -> Mapping[Site, Tensor]:
        return self.truth.reference.truth

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
    select: Callable[[Case], bool] = lambda _: True,
) -> list[Limit]:
    """The limits of every honest cell of a stored run that has a write and passes."""
    layers = model_info(run, model).layers
    later = of_stream(precision, layers * model_info(run, model).width)
    measured: list[Limit] = []
    for scenario in scenarios.values():
        for case in scenario.expand(layers) if layers else ():
            if scenario.twin(case) and select(case):
                judged_by = (run, model, backends, scenario, case, thresholds)
                own = _of_case(*judged_by, precision=precision, trials=trials)
                measured += (replace(limit, later=later) for limit in own)
    return measured


def of_stream(precision: Precision, terms: int) -> float:
    """What must be seen of a fault on the way of a model whose width times layers this is: each
    layer adds sums of as many products as the stream is wide, and their roundings add up.
    """
    return max(OF_STREAM, ROUNDINGS * metrics.least(precision, terms))


def broken(limits: Sequence[Limit]) -> list[str]:
    """What of float32 is beyond the bar, in words, the worst first."""
    beyond = [limit for limit in limits if limit.precision is Precision.FLOAT32 and not limit.holds]
    beyond.sort(key=lambda limit: -(limit.most or math.inf))
    return [
        f"{limit.kind} of {limit.bar:.1e} found in 95 % of the trials of {limit.scenario}."
        f"{limit.case} on {limit.model} × {limit.backend}: {dose_words(limit.most)}"
        for limit in beyond
    ]


def dose_words(dose: float | None) -> str:
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
    measured: list[tuple[Mapping[str, Tensor], bool, list[Limit]]] = []
    for backend in backends:
        folder = gathered_in(backend.id, precision)
        outcome = run.outcome(model.id, folder, case.key)
        if outcome is None or outcome.status is not Status.OK:
            continue
        observed = run.observations(model.id, folder, case.key)
        # Judging is pure: what holds of these very bits is known.
        group = run.group(model.id, folder)
        bitwise = group is not None and group.bitwise
        alike = (
            one for bits, held, one in measured if held is bitwise and same_bits(bits, observed)
        )
        own = next(alike, None)
        if own is None:
            truth = truths.along(observed)
            if isinstance(truth, str):
                continue
            evidence = (observed, outcome.prompt_ids, truth, scenario.equal(case))
            cell = _Cell(*evidence, bitwise=bitwise)
            own = _of_cell(cell, case, thresholds, trials)
            measured.append((observed, bitwise, own))
        yield from (replace(limit, model=model.id, backend=backend.id) for limit in own)


def _of_cell(cell: _Cell, case: Case, thresholds: Thresholds, trials: int) -> list[Limit]:
    """Of each kind that the cell can have; nothing of a cell that does not pass as it is."""
    if not cell.passes(cell.observed, thresholds):
        return []
    limits = []
    size = _size_of_effect(cell)
    for kind in Kind:
        chances = [Chance(f"{case.key} {kind} {number}") for number in range(trials)]
        faults = [doses.fault(cell, kind, chance) for chance in chances]
        possible = [fault for fault in faults if fault is not None]
        enough = sorted(_smallest_dose(cell, fault, thresholds) for fault in possible)
        if enough:
            precision = cell.truth.reference.precision
            half, most = (_found_in(enough, share) for share in (0.5, 0.95))
            identity = ("m", "b", case.scenario, case.name, precision, kind, len(enough))
            limits.append(Limit(*identity, half, most, size))
    return limits


def _size_of_effect(cell: _Cell) -> float:
    """How large the effect is at the median row that is first changed, as a share of the row."""
    truth = cell.truth_values
    changed = [site for site in pairs(cell) if bool(touched(cell, site).any())]
    if not changed:
        return 1.0
    first = min(changed, key=verdict.depth)
    before, after = metrics.rows(truth[clean_twin(first)]), metrics.rows(truth[first])
    shares = metrics.ratio((after - before).norm(dim=-1), before.norm(dim=-1))
    return float(shares[touched(cell, first)].median())


def _found_in(enough: Sequence[float], share: float) -> float | None:
    """The dose that was enough in this share of the trials."""
    dose = enough[math.ceil(share * len(enough)) - 1]
    return None if math.isinf(dose) else dose


def _smallest_dose(cell: _Cell, fault: Fault, thresholds: Thresholds) -> float:
    """The smallest dose that is found, by halving; infinite where the whole effect is not."""

    def is_found(exponent: int) -> bool:
        return not cell.passes(fault(2.0 ** (-exponent / _STEPS)), thresholds)

    if not is_found(0):
        return math.inf
    low, high = 0, _FINEST * _STEPS + 1  # found at low, taken as not found at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_found(middle) else (low, middle)
    return float(2.0 ** (-low / _STEPS))

"""Measure the detection limit of each cell by precision: the smallest fault that is found.

Faults of known size are put into the stored observations of fault-free cells, and the ordinary
judge judges them. For a cell that writes: the write's effect a little too large or too small
(`gain`), a part of it in another direction (`off-axis`), a part of it at a token that is not
written (`leak`). The dose is a share of the write's effect where it is observed. A fault of the
write begins where the write is first seen, a `later` one at some layer after it; both continue in
all later observations. For a cell that only reads: an error in one value that is `served`, in all
of its rows or in one. The dose is a share of the row's length.

Each trial draws a prompt or value, a sign or direction and a layer, and searches the smallest dose
that is found. Faults that no dose shows stay in the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from conformance.commands.selftest import doses
from conformance.commands.selftest.doses import Chance, Fault, clean_site, pairs, touched
from conformance.judge.cell import judgement as verdict
from conformance.judge.cell.both_precisions import decide
from conformance.judge.cell.judge_cell import judge_cell
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.measures.draws import Draws
from conformance.judge.cell.measures.relations import same_bits
from conformance.judge.runs.one_case import draws_of
from conformance.judge.runs.one_model import model_info
from conformance.judge.runs.reference_reader import ReferenceReader
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.records import (
    Answer,
    Backend,
    Case,
    Model,
    Precision,
    Status,
    Thresholds,
    Verdict,
)
from conformance.spec.records.injected import OF_STREAM, Kind, Limit
from conformance.spec.scenario import Scenario

#: Doses are powers of two and quarter steps between them. These are the finest exponents: about a
#: millionth in float32; in bf16 less than one of its numbers, which have eight bits, can show.
_FINEST: Mapping[Precision, int] = {Precision.FLOAT32: 20, Precision.BF16: 10}
_STEPS = 4
#: In deep or wide models the rounding errors are larger. Faults must be found from this multiple of
#: them on: the factor that any value in float32 is allowed.
ROUNDINGS = 100.0


@dataclass(frozen=True)
class _Cell(doses.DosedCell):
    """A fault-free cell, and what it is judged by."""

    prompt_ids: tuple[tuple[int, ...], ...]
    reference_ids: tuple[tuple[int, ...], ...]
    equal: Sequence[tuple[str, str]]
    bitwise: bool
    has_edit: bool
    draws: Draws | None = None

    def passes(self, observed: Mapping[str, Tensor], thresholds: Thresholds) -> bool:
        """Return whether nothing is seen in this precision, not even drift. In bf16, a float32 pass
        is assumed: a write below the noise floor is then not a failure, but other errors are.
        """
        judgement = judge_cell(
            observed,
            self.reference,
            has_edit=self.has_edit,
            equal=self.equal,
            prompt_ids=self.prompt_ids,
            reference_ids=self.reference_ids,
            limits=thresholds.of(self.reference.precision),
            draws=self.draws,
            alone=self.reference.precision is Precision.FLOAT32,
            explain=False,
            bitwise=self.bitwise,
        )
        answer = Answer(
            self.reference.precision,
            judgement.verdict,
            judgement.reason,
            observations=judgement.observations,
            relations=judgement.relations,
        )
        answers = [answer]
        if self.reference.precision is Precision.BF16:
            answers.append(Answer(Precision.FLOAT32, Verdict.MATCH, ""))
        return decide(answers).verdict.passes


def limits(
    run: RunFolder,
    model: Model,
    backends: Sequence[Backend],
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    *,
    precision: Precision = Precision.FLOAT32,
    trials: int,
    cases: Sequence[str] | None = None,
) -> list[Limit]:
    """Return the limits of every fault-free cell (None) or those of some `cases` of a stored run,
    as far as they pass in this precision.
    """
    layers = model_info(run, model).layers
    later = of_stream(precision, layers * model_info(run, model).width)
    measured: list[Limit] = []
    for scenario in scenarios.values():
        for case in scenario.expand(layers) if layers else ():
            if cases is None or case.key in cases:
                judged_by = (run, model, backends, scenario, case, thresholds)
                own = _of_case(*judged_by, precision=precision, trials=trials)
                measured += (replace(limit, later=later) for limit in own)
    return measured


def of_stream(precision: Precision, terms: int) -> float:
    """Return the smallest dose at which later faults must be found. `terms` is width times layers:
    each layer adds sums with as many products as the stream's width, and rounding errors add up.
    """
    return max(OF_STREAM, ROUNDINGS * metrics.least(precision, terms))


def broken(limits: Sequence[Limit]) -> list[str]:
    """Describe the float32 limits beyond the bar, the worst first."""
    beyond = [limit for limit in limits if not limit.holds]
    beyond.sort(key=lambda limit: -(limit.most or math.inf))
    return [
        f"{limit.kind} of {limit.bar:.1e} found in 95 % of the trials of {limit.scenario}."
        f"{limit.case} on {limit.model} × {limit.backend}: "
        + (f"none up to {limit.largest:.1e}" if limit.most is None else f"{limit.most:.1e}")
        for limit in beyond
    ]


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
    has_edit = scenario.twin(case)
    reader = ReferenceReader(run, model.id, case, has_edit=has_edit, precision=precision)
    measured: list[tuple[Mapping[str, Tensor], bool, list[Limit]]] = []
    for backend in backends:
        folder = gathered_in(backend.id, precision)
        outcome = run.outcome(model.id, folder, case.key)
        if outcome is None or outcome.status is not Status.OK:
            continue
        observed = run.observations(model.id, folder, case.key)
        # Judging is pure: the same bits have the same limits.
        group = run.group(model.id, folder)
        bitwise = group is not None and group.bitwise
        alike = (
            one for bits, held, one in measured if held is bitwise and same_bits(bits, observed)
        )
        own = next(alike, None)
        if own is None:
            case_reference = reader.along(observed)
            if isinstance(case_reference, str):
                continue
            cell = _Cell(
                observed,
                case_reference.reference,
                outcome.prompt_ids,
                case_reference.prompt_ids,
                scenario.equal(case),
                bitwise,
                has_edit,
                draws_of(case) if reader.drawn() else None,
            )
            own = _of_cell(cell, case, thresholds, trials)
            measured.append((observed, bitwise, own))
        yield from (replace(limit, model=model.id, backend=backend.id) for limit in own)


def _of_cell(cell: _Cell, case: Case, thresholds: Thresholds, trials: int) -> list[Limit]:
    """Return a limit for each kind of fault that fits the cell; none if the cell does not pass."""
    if not cell.passes(cell.observed, thresholds):
        return []
    limits = []
    size, precision = _size_of_effect(cell), cell.reference.precision
    tried = _doses(precision, size)
    for kind in Kind:
        if kind.of_write is not cell.has_edit:
            continue
        chances = (Chance(f"{case.key} {kind} {number}") for number in range(trials))
        faults = [fault for chance in chances if (fault := doses.fault(cell, kind, chance))]
        enough = sorted(_smallest_doses(cell, faults, tried, thresholds))
        if enough:
            ranked = (enough[math.ceil(share * len(enough)) - 1] for share in (0.5, 0.95))
            half, most = (None if math.isinf(dose) else dose for dose in ranked)
            identity = ("m", "b", case.scenario, case.name, precision, kind, len(enough))
            limits.append(Limit(*identity, half, most, size, largest=tried[0]))
    return limits


def _doses(precision: Precision, size: float) -> list[float]:
    """Return the doses to try, the largest first: in float32 the whole effect, which is more than
    enough; in bf16, where an effect may lie below the noise floor, as much as the stream.
    """
    fits = precision is Precision.BF16 and 0 < size < 1
    largest = math.ceil(-math.log2(size)) if fits else 0
    finest = _FINEST[precision]
    return [2.0 ** (-step / _STEPS) for step in range(-largest * _STEPS, finest * _STEPS + 1)]


def _size_of_effect(cell: _Cell) -> float:
    """Return the size of the effect at the median row of the first changed site, as a share of the
    row; 1 if nothing is written.
    """
    reference = cell.reference.reference_values
    changed = [site for site in pairs(cell) if bool(touched(cell, site).any())]
    if not changed:
        return 1.0
    first = min(changed, key=verdict.depth)
    before, after = (metrics.rows(reference[site]) for site in (clean_site(first), first))
    shares = metrics.ratio((after - before).norm(dim=-1), before.norm(dim=-1))
    return float(shares[touched(cell, first)].median())


def _smallest_doses(
    cell: _Cell, faults: Sequence[Fault], tried: Sequence[float], thresholds: Thresholds
) -> Iterator[float]:
    """Yield the smallest dose of each fault that is found, infinity if none is. The search starts
    at the previous result, doubles its steps, then bisects: trials of one kind are much alike.
    """
    at = len(tried) // 2
    for fault in faults:
        low, high, step = -1, len(tried), 1  # found at low, not at high, if they were tried
        while high - low > 1:
            if not cell.passes(fault(tried[at]), thresholds):
                low, at = at, at + step
            else:
                high, at = at, at - step
            step *= 2
            if not low < at < high:
                at = (low + high) // 2
        yield math.inf if low < 0 else tried[low]
        at = max(low, 0)

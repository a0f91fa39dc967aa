"""Turn the stored observations of a self-test into its table, using the ordinary judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from conformance.commands.selftest.faulty_columns import FaultyColumn, Plan
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.measures.relations import BITWISE
from conformance.judge.runs import OneModel
from conformance.runner.store import RunFolder
from conformance.spec.records import (
    Attribution,
    Cell,
    CellResult,
    Column,
    Judged,
    Precision,
    Side,
    Site,
    Thresholds,
)
from conformance.spec.records.injected import Alarm, Ending, Limit, Row
from conformance.spec.scenario import Scenario

#: The printed bound assumes that two errors are orthogonal. With some hundred numbers that holds
#: only to a few per cent, so a miss this little above the bound does not count.
AT_THE_BOUND = 1.1
BF16 = Precision.BF16


@dataclass(frozen=True)
class Verdicts:
    """The judge's results. `cells` are the verdicts. `apart` are the attributions of faulty cells
    judged without a fault-free column of the same engine. `by_precision` are the fault-free cells'
    verdicts in each precision alone. `limits` are the smallest faults of writes that it finds.
    """

    cells: Mapping[str, CellResult]
    apart: Mapping[str, Attribution]
    by_precision: Mapping[Precision, Mapping[str, CellResult]] = field(default_factory=dict)
    limits: Sequence[Limit] = ()


def merged(parts: Iterable[Verdicts]) -> Verdicts:
    """Return the results of several models together."""
    cells: dict[str, CellResult] = {}
    apart: dict[str, Attribution] = {}
    by_precision: dict[Precision, dict[str, CellResult]] = {kind: {} for kind in Precision}
    limits: list[Limit] = []
    for part in parts:
        cells |= part.cells
        apart |= part.apart
        limits += part.limits
        for precision, fault_free in part.by_precision.items():
            by_precision[precision] |= fault_free
    return Verdicts(cells, apart, by_precision, limits)


def results(
    run: RunFolder, plan: Plan, scenarios: Mapping[str, Scenario], thresholds: Thresholds
) -> Verdicts:
    """Return the verdicts on one model's fault-free cells, as in any run, and on its faulty cells,
    judged together with fault-free cells. A fault of float32 is judged in float32 alone, one of
    bf16 with the fault-free float32 of its column, as in a run.
    """
    plain, [model] = plan.fault_free, plan.models
    sound = tuple(map(Column, plan.backends))
    context = (scenarios, thresholds)
    by_cell: dict[str, CellResult] = {}
    apart: dict[str, Attribution] = {}
    by_precision: dict[Precision, Mapping[str, CellResult]] = {}
    for precision, judged_in in (
        (Precision.FLOAT32, (Precision.FLOAT32,)),
        (BF16, tuple(Precision)),
    ):
        in_precision = [column for column in plan.faulty if column.precision is precision]
        cells = [cell for column in in_precision for cell in column.cells]
        columns = (*sound, *(column.as_judged() for column in in_precision))
        judge = OneModel(run, model, columns, *context, judged_in)
        judged = judge.judge_cells([*plain, *cells])
        by_precision[precision] = decided = {cell.id: judged[cell.id] for cell in plain}
        by_cell |= judge.attribute_failures(judged, columns)
        for group in _alone(in_precision):
            own = {cell.id: judged[cell.id] for column in group for cell in column.cells}
            blamed = judge.attribute_failures(own, [column.as_judged() for column in group])
            apart |= {
                name: result.attribution for name, result in blamed.items() if result.attribution
            }
    # Last is bf16, whose cells are judged in both precisions: the fault-free ones as in any run.
    by_cell |= judge.attribute_failures(decided, sound)
    by_precision[BF16] = OneModel(run, model, sound, *context, (BF16,)).judge_cells(plain)
    return Verdicts(by_cell, apart, by_precision)


def _alone(faulty: Sequence[FaultyColumn]) -> list[list[FaultyColumn]]:
    """Group the columns of one engine with the same fault, as if every column of that engine had
    it. Faults of the transport are left out: a single stage without the fault distinguishes them.
    """
    groups: dict[tuple[str, str, str], list[FaultyColumn]] = {}
    for column in faulty:
        if column.variant.fault.side is not Side.PIPELINE:
            key = (column.model, column.backend.engine, column.variant.id)
            groups.setdefault(key, []).append(column)
    return list(groups.values())


def rows(
    run: RunFolder,
    faulty: Sequence[FaultyColumn],
    verdicts: Verdicts,
    sound: Verdicts,
    excused: Callable[[Cell, CellResult], bool] = lambda _, __: False,
) -> list[Row]:
    """Return a row for each faulty cell. The bound is the smallest detectable error that the
    `sound` judge reported for the fault-free cell, in the precision of the fault. A fault that
    an entry of known.yaml would have `excused` is missed.
    """
    found = []
    for column in faulty:
        for cell in column.cells:
            row = _row(run, column, cell, verdicts, sound)
            plain = replace(cell, backend=column.backend.id)
            if row.ending is Ending.CAUGHT and excused(plain, verdicts.cells[cell.id]):
                words = f"known.yaml excuses it: {row.reason}"
                row = replace(row, ending=Ending.MISSED, reason=words)
            found.append(row)
    return found


def alarms(by_cell: Mapping[str, CellResult], fault_free: Sequence[Cell]) -> list[Alarm]:
    return [
        Alarm(cell.id, by_cell[cell.id].verdict, by_cell[cell.id].reason)
        for cell in fault_free
        if by_cell[cell.id].verdict.fails
    ]


def _row(
    run: RunFolder, column: FaultyColumn, cell: Cell, verdicts: Verdicts, sound: Verdicts
) -> Row:
    fault, result = column.variant.fault, verdicts.cells[cell.id]
    row = Row(
        fault=fault.id,
        side=fault.side,
        variant=column.variant.id,
        model=cell.model,
        backend=column.backend.id,
        scenario=cell.scenario,
        case=cell.case,
        dose=column.variant.dose,
        place=column.variant.place,
        ending=Ending.MISSED,
        verdict=result.verdict,
        expected=tuple(sorted(fault.verdicts)),
        right_verdict=result.verdict in fault.verdicts,
        diagnosis=result.diagnosis,
        says=fault.says,
        reason=result.reason,
        inside=fault.point.inside,
        precision=fault.precision,
    )
    if result.harness:  # nothing was proved, whatever the verdict
        return replace(row, ending=Ending.ALARM if fault.silent else Ending.MISSED)
    if fault.silent:
        ending = Ending.ALARM if result.verdict.fails else Ending.QUIET
        return replace(row, ending=ending if not result.verdict.neutral else Ending.ABSENT)
    if result.verdict.neutral and not row.right_verdict:
        return replace(row, ending=Ending.ABSENT)
    fault_free = sound.by_precision.get(fault.precision, {})
    counterpart = fault_free.get(replace(cell, backend=column.backend.id).id)
    if result.verdict.passes:
        relations = counterpart.relations if counterpart else ()
        if fault.by_bits and not any(one.name.startswith(BITWISE) for one in relations):
            return replace(row, ending=Ending.ABSENT)
        size = _size(run, column, cell, counterpart, sound.cells[cell.id]) if counterpart else None
        below = size is not None and 0 < size < AT_THE_BOUND
        return replace(row, size=size, ending=Ending.BELOW if below else Ending.MISSED)
    beside, apart = result.attribution, verdicts.apart.get(cell.id)

    def is_right(found: Attribution | None) -> bool | None:
        return None if found is None or fault.side is Side.HARNESS else found.side is fault.side

    said = any(word in result.diagnosis for word in fault.says) if fault.says else None
    return replace(
        row,
        ending=Ending.CAUGHT,
        right_diagnosis=said,
        attribution=getattr(beside, "side", None),
        right_side=is_right(beside),
        apart=getattr(apart, "side", None),
        right_apart=is_right(apart),
        blame="; apart: ".join(found.evidence for found in (beside, apart) if found),
    )


def _size(
    run: RunFolder, column: FaultyColumn, cell: Cell, fault_free: CellResult, faulty: CellResult
) -> float | None:
    """Return the fault's largest change relative to what the judge could detect in the fault-free
    cell: over all tokens of a site or at any one of them. Common shifts and massive dimensions have
    their own bounds; the sound judge reports the share of them that the faulty cell reached.
    """
    faulty_values = run.observations(cell.model, column.folder, cell.key)
    fault_free_values = run.observations(cell.model, column.fault_free_folder, cell.key)
    shares = [
        share
        for observation in fault_free.observations
        if observation.smallest
        and observation.site in faulty_values
        and observation.site in fault_free_values
        for share in _shares(
            faulty_values[observation.site], fault_free_values[observation.site], observation
        )
    ]
    answers = [one for one in (faulty, faulty.beside) if one and one.precision is column.precision]
    shares += [
        observation.extra[bound]
        for answer in answers
        for observation in answer.observations
        for bound in ("shift_share", "massive_share")
        if bound in observation.extra
        and observation.site in fault_free_values
        and not torch.equal(
            faulty_values[observation.site].double(), fault_free_values[observation.site].double()
        )
    ]
    return max(shares, default=None)


def _shares(faulty_values: Tensor, fault_free_values: Tensor, fault_free: Judged) -> list[float]:
    """Return the change of all tokens and of the worst one, each over the smallest error."""
    if (
        faulty_values.shape != fault_free_values.shape
        or not fault_free_values.is_floating_point()
        or not fault_free.smallest
    ):
        return []
    before = metrics.rows(fault_free_values)
    moved = metrics.rows(faulty_values) - before
    if Site.parse(fault_free.site).name == "logits":  # compared without their means
        moved = moved - moved.mean(dim=-1, keepdim=True)
        before = before - before.mean(dim=-1, keepdim=True)
    mask = metrics.bulk(before)
    ratios = metrics.ratio(metrics.norm(moved, mask), metrics.norm(before, mask)).tolist()
    shares = [metrics.median(ratios) / fault_free.smallest]
    local = fault_free.extra.get("smallest_local")
    return [*shares, max(ratios) / local] if local else shares

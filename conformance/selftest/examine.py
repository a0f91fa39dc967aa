"""From the stored observations of a self-test to its table: the ordinary judge, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.judge.measures import metrics
from conformance.records import (
    Attribution,
    Backend,
    Cell,
    CellResult,
    Column,
    Judged,
    Model,
    Precision,
    Side,
    Site,
    Thresholds,
)
from conformance.scenario import Scenario
from conformance.selftest.columns import FaultyColumn
from conformance.selftest.fault import INSIDE
from conformance.selftest.sensitivity import Limit
from conformance.selftest.table import Alarm, Ending, Row
from conformance.store import RunFolder
from conformance.verdicts import OneModel

#: The printed bound takes two errors to be at right angles. Those of some hundred numbers are
#: so to a few per cent only: what lies so little above it is not counted as missed.
AT_THE_BOUND = 1.1


@dataclass(frozen=True)
class Told:
    """What the judge says of the cells, and who is blamed for the faulty ones where no honest
    column of the same engine stands beside them; the smallest faults of writes that it finds.
    """

    cells: Mapping[str, CellResult]
    apart: Mapping[str, Attribution]
    limits: Sequence[Limit] = ()


def results(
    run: RunFolder,
    model: Model,
    backends: Sequence[Backend],
    faulty: Sequence[FaultyColumn],
    honest: Sequence[Cell],
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
) -> Told:
    """The verdicts on a model's honest cells, as in any run, and on its faulty ones: each in the
    precision that its fault is injected in, beside honest cells in the same.
    """
    plain = [cell for cell in honest if cell.model == model.id]
    found: dict[str, CellResult] = {}
    apart: dict[str, Attribution] = {}
    for precision in Precision:
        those = [one for one in faulty if one.precision is precision]
        cells = [*plain, *(cell for one in those for cell in one.cells if cell.model == model.id)]
        columns = (*map(Column, backends), *(one.as_judged() for one in those))
        judge = OneModel(run, model, columns, scenarios, thresholds, (precision,))
        known = judge.cells(cells)
        found |= judge.blamed(known, columns)
        for group in _alone(those):
            own = {cell.id: known[cell.id] for one in group for cell in one.cells}
            blamed = judge.blamed(own, [one.as_judged() for one in group])
            apart |= {name: one.attribution for name, one in blamed.items() if one.attribution}
    judge = OneModel(
        run, model, tuple(map(Column, backends)), scenarios, thresholds, tuple(Precision)
    )
    return Told(found | judge.blamed(judge.cells(plain), judge.columns), apart)


def _alone(faulty: Sequence[FaultyColumn]) -> list[list[FaultyColumn]]:
    """The columns of one engine with one fault, as a run would have them in which every column
    of that engine has it. The transport's faults are told from others by a single stage without.
    """
    groups: dict[tuple[str, str, str], list[FaultyColumn]] = {}
    for one in faulty:
        if one.variant.fault.side is not Side.PIPELINE:
            key = (one.cells[0].model, one.backend.engine, one.variant.id)
            groups.setdefault(key, []).append(one)
    return list(groups.values())


def rows(
    run: RunFolder,
    faulty: Sequence[FaultyColumn],
    judged: Told,
    honest: Mapping[str, CellResult],
) -> list[Row]:
    """A row for each faulty cell. `honest` has what the sound judge said of the honest ones:
    what it prints as the smallest error is the bound that counts.
    """
    return [_row(run, column, cell, judged, honest) for column in faulty for cell in column.cells]


def alarms(judged: Mapping[str, CellResult], honest: Sequence[Cell]) -> list[Alarm]:
    return [
        Alarm(cell.id, judged[cell.id].verdict, judged[cell.id].reason)
        for cell in honest
        if judged[cell.id].verdict.fails
    ]


def _row(
    run: RunFolder,
    column: FaultyColumn,
    cell: Cell,
    judged: Told,
    honest: Mapping[str, CellResult],
) -> Row:
    fault, result = column.variant.fault, judged.cells[cell.id]
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
        inside=fault.point in INSIDE,
    )
    if result.harness:  # nothing was proved, whatever verdict stands there
        return replace(row, ending=Ending.ALARM if fault.silent else Ending.MISSED)
    if fault.silent:
        ending = Ending.ALARM if result.verdict.fails else Ending.QUIET
        return replace(row, ending=ending if not result.verdict.neutral else Ending.ABSENT)
    if result.verdict.neutral:
        return replace(row, ending=Ending.ABSENT)
    twin = honest.get(replace(cell, backend=column.backend.id).id)
    if result.verdict.passes:
        size = _size(run, column, cell, twin, honest[cell.id]) if twin else None
        below = size is not None and 0 < size < AT_THE_BOUND
        return replace(row, size=size, ending=Ending.BELOW if below else Ending.MISSED)
    side = getattr(result.attribution, "side", None)
    apart = getattr(judged.apart.get(cell.id), "side", None)
    return replace(
        row,
        ending=Ending.CAUGHT,
        right_diagnosis=_says(result.diagnosis, fault.says),
        attribution=side,
        right_side=_right(side, fault.side),
        apart=apart,
        right_apart=_right(apart, fault.side),
        blame=_evidence(result.attribution, judged.apart.get(cell.id)),
    )


def _right(side: Side | None, injected: Side) -> bool | None:
    return None if side is None or injected is Side.HARNESS else side is injected


def _evidence(*found: Attribution | None) -> str:
    return "; apart: ".join(each.evidence for each in found if each is not None)


def _says(diagnosis: str, words: Sequence[str]) -> bool | None:
    return any(word in diagnosis for word in words) if words else None


def _size(
    run: RunFolder, column: FaultyColumn, cell: Cell, honest: CellResult, faulty: CellResult
) -> float | None:
    """The largest of what the fault moved, over what the honest cell's judge could have seen
    there: on all tokens of a site or on any one of them. Common shifts and massive dimensions
    have bounds of their own; the sound judge says of the faulty cell what share it reached.
    """
    mine = run.observations(cell.model, column.folder, cell.key)
    theirs = run.observations(cell.model, column.honest_folder, cell.key)
    found = [
        share
        for one in honest.observations
        if one.smallest and one.site in mine and one.site in theirs
        for share in _shares(mine[one.site], theirs[one.site], one)
    ]
    found += [
        one.extra[bound]
        for one in faulty.observations
        for bound in ("shift_share", "massive_share")
        if bound in one.extra
        and one.site in theirs
        and not torch.equal(mine[one.site].double(), theirs[one.site].double())
    ]
    return max(found, default=None)


def _shares(mine: Tensor, theirs: Tensor, honest: Judged) -> list[float]:
    """How far all tokens and the worst one moved, each over the smallest error there."""
    if mine.shape != theirs.shape or not theirs.is_floating_point() or not honest.smallest:
        return []
    before = metrics.rows(theirs)
    moved = metrics.rows(mine) - before
    if Site.parse(honest.site).name == "logits":  # compared without their means
        moved = moved - moved.mean(dim=-1, keepdim=True)
        before = before - before.mean(dim=-1, keepdim=True)
    mask = metrics.bulk(before)
    ratios = metrics.ratio(metrics.norm(moved, mask), metrics.norm(before, mask)).tolist()
    shares = [metrics.median(ratios) / honest.smallest]
    local = honest.extra.get("smallest_local")
    return [*shares, max(ratios) / local] if local else shares

"""From the stored observations of a self-test to its table: the ordinary judge, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from conformance import verdicts
from conformance.judge.measures import metrics
from conformance.records import (
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
from conformance.selftest.table import Alarm, Ending, Row
from conformance.store import RunFolder

#: The printed bound takes two errors to be at right angles. Those of some hundred numbers are
#: so to a few per cent only: what lies so little above it is not counted as missed.
AT_THE_BOUND = 1.1


def results(
    run: RunFolder,
    model: Model,
    backends: Sequence[Backend],
    faulty: Sequence[FaultyColumn],
    honest: Sequence[Cell],
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
) -> dict[str, CellResult]:
    """The verdicts on a model's honest cells, as in any run, and on its faulty ones: each in the
    precision that its fault is injected in, beside honest cells in the same.
    """
    plain = [cell for cell in honest if cell.model == model.id]
    found: dict[str, CellResult] = {}
    for precision in Precision:
        those = [one for one in faulty if one.precision is precision]
        cells = [*plain, *(cell for one in those for cell in one.cells if cell.model == model.id)]
        columns = (*map(Column, backends), *(one.as_judged() for one in those))
        judge = partial(verdicts.judge_model, run, model, columns, cells, scenarios, thresholds)
        found |= judge((precision,))
    judge = partial(verdicts.judge_model, run, model, tuple(map(Column, backends)), plain)
    return found | judge(scenarios, thresholds, tuple(Precision))


def rows(
    run: RunFolder,
    faulty: Sequence[FaultyColumn],
    judged: Mapping[str, CellResult],
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
    judged: Mapping[str, CellResult],
    honest: Mapping[str, CellResult],
) -> Row:
    fault, result = column.variant.fault, judged[cell.id]
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
    return replace(
        row,
        ending=Ending.CAUGHT,
        right_diagnosis=_says(result.diagnosis, fault.says),
        attribution=side,
        right_side=None if side is None or fault.side is Side.HARNESS else side is fault.side,
    )


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

"""What a run keeps of a judged model: figures of expected results, tensors of others.

Tensors are nearly all of a run's bytes, and after the verdicts they are read again only where
something is new. `reduce_model` keeps the tensors of every case in which some column's result is
unexpected, with the reference's baseline runs and what the engines do without nnsight. Of the other
cases it keeps the verdicts, the figures of each observation and the digest of each file.

    <run>/groups/<model>/kept.json                        what was kept, and the digests
    <run>/groups/<model>/kept-cells.{json,parquet}        the verdicts and figures of all cells

Both are on disk before the first tensor is removed: a process killed in between loses nothing, and
the rest is removed when the run is resumed. A resumed run repeats the whole case of a cell whose
outcome is missing (`reopen`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.errors import ConformanceError
from conformance.runner.store import details
from conformance.runner.store.files import read_record, write_record
from conformance.spec import loose_json
from conformance.spec.cached_folder import file_digest
from conformance.spec.records import CellResult, Confirmation, Thresholds, record
from conformance.spec.records.base import Id

if TYPE_CHECKING:
    from conformance.runner.store.folder import RunFolder

OBSERVATIONS = "observations.safetensors"
KEPT = "kept.json"
_CELLS = "kept-cells"


class NotKept(ConformanceError):
    """The tensors of a cell were dropped because its result was expected."""


@record()
class KeptModel:
    """What was kept of one model: the tensors of these `cases` (keys), everything else as figures.

    `truth` is who confirms the reference, `dropped` the SHA-256 digest of each dropped file, by
    group and case. The cases in `reopened` are being repeated.
    """

    model: Id
    thresholds: Thresholds
    truth: Confirmation
    cases: tuple[str, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)
    reopened: tuple[str, ...] = ()


@record()
class _Cells:
    cells: tuple[CellResult, ...]
    details: str = ""


def find_dropped(group: Path, key: str) -> NotKept | None:
    """Return the error for dropped observations of a case, None if they were not dropped."""
    dropped = loose_json.mapping(group.parent / KEPT).get("dropped", {})
    if not isinstance(dropped, dict) or f"{group.name}/{key}" not in dropped:
        return None
    return NotKept(
        "was as expected, and its tensors were not kept",
        path=group / "cells" / key,
        remedy="gather them: conformance run --keep all",
    )


def read(run: RunFolder, model: str) -> KeptModel | None:
    """Return what was kept of a model, None if it was never reduced."""
    return read_record(KeptModel, _folder(run, model) / KEPT)


def reduced(run: RunFolder, models: Iterable[str]) -> dict[str, KeptModel]:
    """Return what was kept, by model, of those that were reduced."""
    found = {model: read(run, model) for model in models}
    return {model: kept for model, kept in found.items() if kept is not None}


def cells(run: RunFolder, models: Iterable[str]) -> dict[str, CellResult]:
    """Load the stored verdicts of reduced models, by cell id."""
    results: dict[str, CellResult] = {}
    for model in models:
        path = _folder(run, model) / f"{_CELLS}.json"
        stored = read_record(_Cells, path)
        if stored is None:
            continue
        whole = stored.cells
        if stored.details:
            whole = details.read(whole, path.with_suffix(".parquet"), stored.details)
        results |= {cell.id: cell for cell in whole}
    return results


def reduce_model(
    run: RunFolder,
    model: str,
    judged: Mapping[str, CellResult],
    off: Collection[str],
    thresholds: Thresholds,
    confirmation: Confirmation,
    always: Collection[str] = (),
) -> None:
    """Reduce a model to what is kept of it.

    `judged` are the verdicts on all of its planned cells, `off` the ids of cells whose cases are
    kept, `always` the scenarios that are kept if anything is. A model with a harness failure or an
    unfinished cell is left unchanged: a resumed run tries it again. One reduced before keeps what
    it has.
    """
    own = [cell for cell in judged.values() if cell.model == model]
    if not own or any(cell.harness for cell in own):
        return
    before = read(run, model)
    if before is not None:
        write_record(_folder(run, model) / KEPT, replace(before, reopened=()))
        finish(run, model)
        return
    cases = tuple(sorted({f"{cell.scenario}.{cell.case}" for cell in own if cell.id in off}))
    folder = _folder(run, model)
    dropped = {  # a linked cell folder has both names
        f"{path.parents[2].name}/{path.parent.name}": file_digest(path)
        for path in sorted(folder.glob(f"*/cells/*/{OBSERVATIONS}"))
        if not _is_kept(path.parent.name, cases, always)
    }
    # known.yaml is matched again whenever they are read.
    plain = [replace(cell, finding=None, gap=None, expected="") for cell in own]
    stored, digest = details.write(plain, folder / f"{_CELLS}.parquet")
    write_record(folder / f"{_CELLS}.json", _Cells(stored, digest))
    write_record(folder / KEPT, KeptModel(model, thresholds, confirmation, cases, dropped))
    _flush(folder)
    finish(run, model)


def reopen(run: RunFolder, model: str, cases: Collection[str], settled: Collection[str]) -> None:
    """Have these `cases` (keys) of a reduced model repeated, with the runs without nnsight.

    Their tensors then stay. If no other case is `settled`, the model becomes one never reduced.
    """
    kept = read(run, model)
    if kept is None:
        return
    dropped = {}
    for name, digest in kept.dropped.items():
        group, _, key = name.partition("/")
        if _plain(key) in settled:
            dropped[name] = digest
        else:
            run.group_folder(model, group).drop_cell(key)
    # Last: a process killed before leaves cells without outcomes, which are found again.
    path = _folder(run, model) / KEPT
    if not settled:
        path.unlink()
        return
    again = tuple(sorted({*kept.cases, *cases}))
    kept = replace(kept, cases=again, dropped=dropped, reopened=tuple(sorted(cases)))
    write_record(path, kept)


def finish(run: RunFolder, model: str) -> None:
    """Remove the files that a reduced model does not keep, if a killed process left them."""
    kept = read(run, model)
    for name in kept.dropped if kept else ():
        group, _, key = name.partition("/")
        (_folder(run, model) / group / "cells" / key / OBSERVATIONS).unlink(missing_ok=True)


def _is_kept(key: str, cases: Collection[str], always: Collection[str]) -> bool:
    scenario = key.partition(".")[0]
    return _plain(key) in cases or (scenario in always and bool(cases)) or scenario == "probe"


def _plain(key: str) -> str:
    """Return a case's key without the tokens that it was forced to."""
    return key.partition("~")[0]


def _flush(folder: Path) -> None:
    """Flush what was written to disk before anything is removed."""
    for path in (*folder.glob(f"{_CELLS}.*"), folder / KEPT, folder):
        target = os.open(path, os.O_RDONLY)
        try:
            os.fsync(target)
        finally:
            os.close(target)


def _folder(run: RunFolder, model: str) -> Path:
    return run.group_folder(model, "any").path.parent


def check_thresholds(found: Mapping[str, KeptModel], thresholds: Thresholds) -> None:
    """Raise NotKept if cells without tensors were judged by other limits than these."""
    if other := [kept for kept in found.values() if kept.thresholds != thresholds]:
        count = sum(len(kept.dropped) for kept in other)
        raise NotKept(
            f"{count:,} observations were judged by other limits, and their tensors were not kept",
            remedy="gather them: conformance run --keep all",
        )

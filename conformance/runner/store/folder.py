"""The folder of one run, and in it the folder of each model × backend.

<run>/plan.json                       what was requested
<run>/groups/<model>/<backend>/       job.json log.txt events.jsonl group.json keys.json
<run>/groups/<model>/<backend>/cells/<case key>/{outcome.json,observations.safetensors}
<run>/results.json index.html
<run>/unfinished                      exists until everything requested has run
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from conformance.errors import ConformanceError
from conformance.runner.store import details, reduced_model
from conformance.runner.store.files import (
    read_bytes,
    read_record,
    read_tensors,
    record_in,
    replacing,
    safe,
    write_record,
    write_tensors,
    write_text,
)
from conformance.runner.store.upgrade import upgraded
from conformance.spec import loose_json
from conformance.spec.records import (
    SCHEMA,
    Cell,
    Column,
    Group,
    Model,
    Outcome,
    Precision,
    Results,
    Selection,
    Status,
    Thresholds,
    record,
)
from conformance.spec.records.base import CellId, Id

if TYPE_CHECKING:
    from torch import Tensor

#: How much of a log is shown: enough for a traceback through an engine.
TAIL_BYTES = 8192

#: How much of a log is searched for the cause of a failure.
LOG_BYTES = 1 << 20

#: The file that marks a run as unfinished. `results.json` cannot: a run resumed after losing a cell
#: already has one.
UNFINISHED = "unfinished"

#: Next to plan.json: what a check was given. A check is not resumed like a run.
CHECK = "check.json"


@record()
class RunPlan:
    """What was requested of a run, written before anything is started.

    `float32_only` cells run only in float32, whatever the run's `precisions`, unless the engine
    refuses the model in float32 (`RunFolder.refuses`). `keep` says whose tensors are kept once a
    model is judged (`conformance.runner.store.reduced_model`).
    """

    run: Id
    started: str
    command: str
    models: tuple[Model, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]
    thresholds: Thresholds = Thresholds()
    scenarios: str | tuple[str, ...] = "scenarios"
    jobs: int = 1
    precisions: tuple[Precision, ...] = (Precision.BF16,)
    float32_only: tuple[CellId, ...] = ()
    selection: Selection = Selection()
    keep: Literal["all", "failing"] = "all"

    def only_float32(self) -> frozenset[Cell]:
        ids = frozenset(self.float32_only)
        return frozenset(cell for cell in self.cells if cell.id in ids) if ids else frozenset()


def gathered_in(column: str, precision: Precision) -> str:
    """Return the folder name for a column's observations in a precision."""
    return column if precision is Precision.BF16 else f"{column}+{precision}"


class GroupFolder:
    """The files that one worker writes and the judge reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def more(self, attempt: int) -> Path:
        """Return the folder in which the worker of this attempt finds further cases."""
        return self.path / f"more.{attempt}"

    def cell(self, key: str) -> Path:
        return self.path / "cells" / safe(key)

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome, None until the cell is finished."""
        return read_record(Outcome, self.cell(key) / "outcome.json")

    def observations(self, key: str) -> dict[str, Tensor]:
        """Load tensors by `str(Site)`, or `member|site` for the reference; {} if there are none.

        Raises ConformanceError if a finished cell's file is absent or damaged, or was not kept
        (`conformance.runner.store.reduced_model.NotKept`).
        """
        outcome = self.outcome(key)
        if outcome is None or outcome.status is not Status.OK:
            return {}
        path = self.cell(key) / reduced_model.OBSERVATIONS
        if not path.exists() and (gone := reduced_model.find_dropped(self.path, key)) is not None:
            raise gone
        return read_tensors(path)

    def write_cell(self, key: str, outcome: Outcome, tensors: Mapping[str, Tensor]) -> None:
        """Write a cell, with the outcome last and by rename: it shows that the cell is complete."""
        cell = self.cell(key)
        if tensors:
            write_tensors(cell / "observations.safetensors", tensors)
        write_record(cell / "outcome.json", outcome)

    def drop_cell(self, key: str) -> None:
        shutil.rmtree(self.cell(key), ignore_errors=True)

    def finished(self) -> tuple[str, ...]:
        """Return the keys of the cells that have an outcome."""
        return tuple(sorted(path.parent.name for path in self.path.glob("cells/*/outcome.json")))

    def group(self) -> Group | None:
        return read_record(Group, self.path / "group.json")

    def write_group(self, group: Group) -> None:
        write_record(self.path / "group.json", group)

    def keys(self) -> dict[str, str]:
        """Return each cell's cache key, by case key."""
        stored = loose_json.mapping(self.path / "keys.json")
        return {key: value for key, value in stored.items() if isinstance(value, str)}

    def write_keys(self, keys: Mapping[str, str]) -> None:
        write_text(self.path / "keys.json", json.dumps(dict(keys), indent=1))

    def log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def log_tail(self, start: int = 0) -> str:
        """Return the end of the log, from byte `start` at the earliest."""
        return self.log_text(start, most=TAIL_BYTES).strip()

    def log_text(self, start: int = 0, *, most: int = LOG_BYTES) -> str:
        """Return the last `most` bytes of the log, from byte `start` at the earliest."""
        size = self.log_size()
        if size <= start:
            return ""
        with self.log.open("rb") as log:
            log.seek(max(start, size - most))
            return log.read(most).decode(errors="replace")


class RunFolder:
    """One self-contained run: it can be judged, compared and moved without the cache."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def is_check(self) -> bool:
        """Return whether this is a check, not a matrix run."""
        return (self.path / CHECK).is_file()

    def plan(self) -> RunPlan:
        """Read the plan. Raises ConformanceError if this is not the folder of a run."""
        plan = read_plan(self.path / "plan.json")
        if plan is None:
            raise ConformanceError(
                "is not the folder of a run: it has no plan.json",
                path=self.path,
                remedy="name a folder under reports/, for example reports/latest",
            )
        return plan

    def write_plan(self, plan: RunPlan) -> None:
        write_record(self.path / "plan.json", plan)

    def begin(self) -> None:
        """Mark the run as unfinished until `finish` is called, however this process ends."""
        (self.path / UNFINISHED).touch()

    def finish(self) -> None:
        (self.path / UNFINISHED).unlink(missing_ok=True)

    def check_finished(self) -> None:
        """Raise ConformanceError for a run that was interrupted or is still in progress."""
        if not (self.path / UNFINISHED).exists():
            return
        plan = self.plan()
        count = len(plan.cells)
        again = f"go on with it: conformance run --resume {self.id}"
        raise ConformanceError(
            f"this run is unfinished: {count - len(self.ungathered())} of {count} planned cells "
            "have an outcome",
            path=self.path,
            remedy=f"check it again: {plan.command}" if self.is_check else again,
        )

    def ungathered(self) -> tuple[Cell, ...]:
        """Return the planned cells that lack an outcome in a precision in which they run."""
        plan = self.plan()
        narrow = plan.only_float32()
        columns: dict[tuple[str, str], list[Cell]] = {}
        for cell in plan.cells:
            columns.setdefault((cell.model, cell.backend), []).append(cell)
        narrow -= {cell for cells in columns.values() if self.refuses(cells) for cell in cells}
        return tuple(
            cell
            for cell in plan.cells
            for precisions in [(Precision.FLOAT32,) if cell in narrow else plan.precisions]
            if not all(self._has_outcome(cell, precision) for precision in precisions)
        )

    def refuses(self, cells: Iterable[Cell]) -> bool:
        """Return whether the engine refused all of these cells, a model's in one column, in
        float32: then the precision is what it refuses, and bf16 has to show what they do.
        """
        outcomes = (
            self.outcome(cell.model, gathered_in(cell.backend, Precision.FLOAT32), cell.key)
            for cell in cells
        )
        return all(one is not None and one.status is Status.UNSUPPORTED for one in outcomes)

    def _has_outcome(self, cell: Cell, precision: Precision) -> bool:
        group = self.group_folder(cell.model, gathered_in(cell.backend, precision))
        return (group.cell(cell.key) / "outcome.json").is_file()

    def group_folder(self, model: str, backend: str) -> GroupFolder:
        return GroupFolder(self.path / "groups" / safe(model) / safe(backend))

    def groups(self) -> Iterator[tuple[str, str]]:
        """Yield every model and backend that was started."""
        for path in sorted(self.path.glob("groups/*/*")):
            if path.is_dir():
                yield path.parent.name, path.name

    def group(self, model: str, backend: str) -> Group | None:
        return self.group_folder(model, backend).group()

    def outcome(self, model: str, backend: str, key: str) -> Outcome | None:
        return self.group_folder(model, backend).outcome(key)

    def observations(self, model: str, backend: str, key: str) -> dict[str, Tensor]:
        return self.group_folder(model, backend).observations(key)

    def write_cell(
        self, model: str, backend: str, key: str, outcome: Outcome, tensors: Mapping[str, Tensor]
    ) -> None:
        self.group_folder(model, backend).write_cell(key, outcome, tensors)

    def write_results(self, results: Results) -> Path:
        path = self.path / "results.json"
        cells, digest = details.write(results.cells, self.path / details.DETAILS)
        write_record(path, replace(results, cells=cells, details=digest))
        return path

    def results(self) -> Results:
        """Read the results. Raises ConformanceError for a run that is unfinished or not judged."""
        self.check_finished()
        return read_results(self.path / "results.json")


def read_plan(path: Path) -> RunPlan | None:
    """Read a plan of this or an earlier version; None if there is no such file."""
    return read_record(RunPlan, path, upgrade=upgraded)


def read_results(path: Path) -> Results:
    """Read a `results.json`; without its footer it is refused as incomplete."""
    remedy = f"finish it: conformance run --resume {path.parent.name}"
    if (path.parent / CHECK).is_file():
        remedy = f"have it answered: conformance judge {path.parent.name}"
    text = read_bytes(path)
    if text is None:
        raise ConformanceError("there are no results", path=path, remedy=remedy)
    try:
        results = record_in(Results, text, path)
    except ConformanceError:
        _check_whole(text, path, remedy)  # which says more of a part, and of another version
        raise
    _check_schema(results.schema, path)
    if not results.details:
        return results
    beside = path.with_name(details.DETAILS)
    return replace(results, cells=details.read(results.cells, beside, results.details), details="")


def _check_whole(text: bytes, path: Path, remedy: str) -> None:
    """Raise if the text is only a part of results, or those of another version."""
    try:
        loose = loose_json.parsed(text)
    except ValueError as error:
        raise ConformanceError(f"is cut off: {error}", path=path, remedy=remedy) from error
    if not isinstance(loose, dict) or "footer" not in loose:
        raise ConformanceError("is incomplete: it has no footer", path=path, remedy=remedy)
    _check_schema(loose.get("schema"), path)


def _check_schema(found: object, path: Path) -> None:
    if found != SCHEMA:
        raise ConformanceError(
            f"has schema {found!r}, expected {SCHEMA!r}",
            path=path,
            remedy="judge the run again: conformance judge RUN",
        )


def create_run(reports: Path, now: datetime, prefix: str = "") -> RunFolder:
    """Create an empty run with an unused name that sorts by time."""
    while True:
        path = reports / f"{prefix}{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        try:
            path.mkdir(parents=True)
        except OSError as error:
            exists = isinstance(error, FileExistsError)
            if exists and reports.is_dir():
                continue
            why = "it is no folder" if exists else error.strerror
            raise ConformanceError(
                f"no run can be kept there: {why}",
                path=reports,
                remedy="name another folder: --reports",
            ) from error
        return RunFolder(path)


def point_latest(run: RunFolder) -> None:
    """Let the link `latest`, next to the run, point to it."""
    with replacing(run.path.parent / "latest") as part:
        part.symlink_to(run.id, target_is_directory=True)


def open_run(reports: Path, name: str = "latest") -> RunFolder:
    """Open a run by its name, or `latest`. Raises ConformanceError if there is none."""
    path = reports / name
    if not name or not path.is_dir():
        raise ConformanceError(
            f"there is no run {name!r}", path=reports, remedy="start one: conformance run"
        )
    return RunFolder(path.resolve())

"""Faulty columns: plan their cells, the jobs that run them, and the folders of their files.

Most faults share an engine load: a worker runs one case after another, each with the fault that its
name contains. Links make every fault's cells appear as a separate column, so that a faulty column
is stored, read and judged like any other.
"""

from __future__ import annotations

import importlib.util
import shutil
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from conformance.commands.selftest.fault import (
    CLIENTS,
    MARK,
    Fault,
    Point,
    Variant,
)
from conformance.errors import ConformanceError
from conformance.judge.expectations import Entry
from conformance.judge.expectations.assess import explains
from conformance.judge.expectations.conditions import holds, where_in
from conformance.judge.runs.one_model import model_info
from conformance.runner.planning.jobs import FORCED, expected, launch, planned_jobs
from conformance.runner.scheduling import Planned, TimeLimits
from conformance.runner.store import RunFolder, gathered_in, link
from conformance.spec.builtin.engine_alone import WITHOUT_NNSIGHT, alone, case_of
from conformance.spec.records import (
    Backend,
    Case,
    Cell,
    CellResult,
    Column,
    Group,
    Job,
    Model,
    Precision,
    Side,
)
from conformance.spec.scenario import PAIR, Scenario

ENGINE = "conformance.commands.selftest.injecting.engine:open_engine"
#: Groups of the faults of a model and backend that can share an engine load.
SHARED = "faults"
#: The approximate number of cells per load. A load takes some seconds, and so does a cell of a real
#: model in float32; larger groups would leave processors idle.
CELLS_OF_A_LOAD = 50
#: How many times a detection limit is measured.
TRIALS = 10
#: Timeouts for cells that are meant to hang.
SHORT = TimeLimits(cell=10.0, load=120.0, close=10.0)


@dataclass(frozen=True)
class FaultyColumn:
    """One variant injected into one backend, and the cells that must catch it."""

    backend: Backend
    variant: Variant
    cells: tuple[Cell, ...]

    @property
    def id(self) -> str:
        return f"{self.backend.id}{MARK}{self.variant.id}"

    @property
    def model(self) -> str:
        return self.cells[0].model

    @property
    def precision(self) -> Precision:
        return self.variant.fault.precision

    @property
    def folder(self) -> str:
        """The folder of the observations of this column."""
        return gathered_in(self.id, self.precision)

    @property
    def fault_free_folder(self) -> str:
        """The folder of the observations of the same column without the fault."""
        return gathered_in(self.backend.id, self.precision)

    def as_judged(self) -> Column:
        """Return the column as the judge sees it.

        A fault that also occurs on one stage is compared with one faulty stage; a fault of the
        transport, or of bits, is compared with a fault-free stage.
        """
        if self.variant.fault.side is Side.PIPELINE or self.variant.fault.by_bits:
            return Column(replace(self.backend, id=self.id))
        options = {**self.backend.options, "variant": self.variant.id}
        return Column(replace(self.backend, id=self.id, options=options))

    def as_run(self) -> Column:
        """Return the column for a separate engine load."""
        options = {
            "engine": self.backend.engine,
            "options": {**self.backend.options, **self.variant.fault.options},
            "variant": self.variant.id,
        }
        return Column(replace(self.backend, id=self.id, engine=ENGINE, options=options))


def fits(fault: Fault, model: Model) -> bool:
    """Return whether the model has the architecture and the parts that the fault needs."""
    is_one = not fault.architectures or model.architecture in fault.architectures
    return is_one and set(fault.parts) <= set(model.parts)


def shared_out(
    faults: Sequence[Fault], models: Sequence[Model], general: Sequence[str] | None = None
) -> list[tuple[Model, tuple[Fault, ...]]]:
    """Return the faults to inject into each model. A `general` model (None: every model) gets all
    faults that fit it. Each other model, in order, gets those that fit neither a general model nor
    an earlier one.
    """
    taken: set[str] = set()
    shares: dict[str, tuple[Fault, ...]] = {}
    for model in sorted(models, key=lambda model: general is not None and model.id not in general):
        is_general = general is None or model.id in general
        shares[model.id] = tuple(
            fault
            for fault in faults
            if fits(fault, model)
            and (general is None or not fault.models or model.id in fault.models)
            and (is_general or fault.id not in taken)
        )
        taken |= {fault.id for fault in shares[model.id]}
    return [(model, shares[model.id]) for model in models]


def columns(
    faults: Iterable[Fault], model: Model, backends: Sequence[Backend], most: int | None = None
) -> tuple[FaultyColumn, ...]:
    """Return every faulty column of a model, with only the last `most` variants of each fault."""
    return tuple(
        FaultyColumn(
            backend,
            variant,
            tuple(
                Cell(model.id, f"{backend.id}{MARK}{variant.id}", *name.split(".", 1))
                for name in fault.cases
            ),
        )
        for fault in faults
        if fits(fault, model)
        for backend in backends
        if backend.id in fault.backends
        for variant in fault.variants()[-(most or 0) :]
    )


def fault_free_cells(
    faulty: Iterable[FaultyColumn], models: Sequence[Model], backends: Sequence[Backend]
) -> tuple[Cell, ...]:
    """Return the fault-free cells that correspond to faulty ones, on all columns. Cells of client
    engines and of other engines are kept apart, because few scenarios run on both.
    """
    every = [(cell, column.backend.id in CLIENTS) for column in faulty for cell in column.cells]
    return tuple(
        Cell(model.id, backend.id, scenario, case)
        for model in models
        for backend in backends
        for scenario, case in dict.fromkeys(
            (cell.scenario, cell.case)
            for cell, sent in every
            if cell.model == model.id and sent is (backend.id in CLIENTS)
        )
    )


@dataclass(frozen=True)
class Measured:
    """The cases of a model whose detection limits are measured (None: all of them)."""

    model: str
    cases: tuple[str, ...] | None = None
    trials: int = TRIALS


@dataclass(frozen=True)
class Plan:
    """What a self-test injects, and which detection limits it measures. A `whole` one has every
    fault and backend, and checks the share of faults inside engine, nnsight or relay.
    """

    models: tuple[Model, ...]
    backends: tuple[Backend, ...]
    faulty: tuple[FaultyColumn, ...]
    fault_free: tuple[Cell, ...]
    gaps: tuple[Entry, ...] = ()
    measured: tuple[Measured, ...] = ()
    whole: bool = False

    def only(self, model: Model, *, limits: bool = True) -> Plan:
        """Return the part for one model, without its detection limits if `limits` is false."""
        faulty = tuple(column for column in self.faulty if column.model == model.id)
        fault_free = tuple(cell for cell in self.fault_free if cell.model == model.id)
        measured = tuple(one for one in self.measured if limits and one.model == model.id)
        return Plan((model,), self.backends, faulty, fault_free, self.gaps, measured)

    def excusing(self, run: RunFolder) -> Callable[[Cell, CellResult], bool]:
        """Return whether a result of a cell is a known gap under the conditions of this run: those
        of the fault-free column in bf16, as an engine may refuse float32. An error of the harness
        is never excused.
        """
        where = {
            (model.id, backend.id): where_in(
                run.group(model.id, gathered_in(backend.id, Precision.BF16))
                or Group(model.id, backend.id),
                model.architecture,
                model_info(run, model).config,
            )
            for model in self.models
            for backend in self.backends
        }

        def excused(cell: Cell, result: CellResult) -> bool:
            return not result.harness and any(
                cell in gap
                and holds(gap.when, where[cell.model, cell.backend])
                and explains(gap, result)
                for gap in self.gaps
            )

        return excused

    def sound(self, run: RunFolder, by_cell: Mapping[str, CellResult]) -> tuple[Cell, ...]:
        """Return the cells that must not be flagged: the fault-free ones but for known gaps."""
        excused = self.excusing(run)
        return tuple(cell for cell in self.fault_free if not excused(cell, by_cell[cell.id]))


def plan(
    faults: Sequence[Fault],
    models: Sequence[Model],
    backends: Sequence[Backend],
    fault_free: Sequence[Cell] = (),
    *,
    most: int | None = None,
    gaps: Sequence[Entry] = (),
    measured: tuple[Measured, ...] = (),
    whole: bool = False,
    general: Sequence[str] | None = None,
) -> Plan:
    """Return the plan with every faulty column; `fault_free` cells are added. Models outside
    `general` (None: all are in it) get only faults that no other model has.
    """
    faulty = tuple(
        column
        for model, own in shared_out(faults, models, general)
        for column in columns(own, model, backends, most)
    )
    if not faulty:
        raise ConformanceError("no fault is left to inject", remedy="see -k, -m and -b")
    corresponding = fault_free_cells(faulty, models, backends)
    everything = tuple(dict.fromkeys((*corresponding, *fault_free)))
    used = {cell.backend for cell in everything}
    running = tuple(backend for backend in backends if backend.id in used)
    return Plan(tuple(models), running, faulty, everything, tuple(gaps), measured, whole)


def jobs(
    run: RunFolder,
    plan: Plan,
    scenarios: Mapping[str, Scenario],
    *,
    folder: Path | tuple[Path, ...],
    cache: Path,
) -> list[Planned]:
    """Return the jobs of the fault-free run, of the faulty columns and of what all of them
    generated. Jobs whose cells hang or die come last: they fill the time that long jobs leave idle.
    """
    planned = planned_jobs(
        run,
        plan.models,
        (*map(Column, plan.backends), *{one.id: one.as_run() for one in plan.faulty}.values()),
        [*plan.fault_free, *(cell for column in plan.faulty for cell in column.cells)],
        scenarios,
        folder=folder,
        cache=cache,
        precisions=tuple(Precision),
    )
    by_id = {job.id: job for job in planned}
    single: dict[str, Planned] = {}
    brief: list[Planned] = []
    for column in plan.faulty:
        if column.precision is Precision.BF16:
            beside = run.group_folder(column.model, gathered_in(column.id, Precision.FLOAT32)).path
            beside.parent.mkdir(parents=True, exist_ok=True)
            link(beside, beside.parent / gathered_in(column.backend.id, Precision.FLOAT32))
        name = f"{column.model}:{column.folder}"
        if not column.variant.fault.alone:
            continue
        if column.variant.fault.point is Point.LIBRARY:
            without = by_id[f"{column.model}:{column.fault_free_folder}"]
            single[name] = _with_another_library(run, column, without, name)
            continue
        job = replace(by_id[name], launch=launch(Column(column.backend)))
        if column.variant.fault.short:
            brief.append(replace(job, limits=SHORT))
        else:
            single[name] = replace(job, make=partial(_make_expecting, job.make, column.backend))
    shared = _shared_jobs(run, [one for one in plan.faulty if not one.variant.fault.alone], by_id)
    of_faults = {
        f"{column.model}:{gathered_in(column.id, precision)}"
        for column in plan.faulty
        for precision in Precision
    }
    sound = [job for job in planned if job.id not in of_faults]
    # The reference follows what all columns of its model generated.
    followers = [job for job in sound if job.id.endswith(f":{FORCED.id}")]
    ready = [job for job in sound if job not in followers] + [*single.values(), *shared]
    forced = [
        replace(job, after=tuple(one.id for one in ready if one.id.startswith(f"{model}:")))
        for job in followers
        for model in [job.id.partition(":")[0]]
    ]
    # Each follower after its model: the largest model's takes a quarter of an hour.
    order = {model.id: index for index, model in enumerate(plan.models)}
    return [*sorted((*ready, *forced), key=lambda job: order[job.id.partition(":")[0]]), *brief]


def _with_another_library(
    run: RunFolder, column: FaultyColumn, fault_free: Planned, name: str
) -> Planned:
    """Return the fault-free column's job, after it, in an environment with a changed library.

    Unless the cache's key follows the files, it gets what the fault-free column observed.
    """
    root = run.path.resolve() / "environments" / column.variant.id
    venv.create(root, symlinks=True)
    [packages] = root.glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("nnsight")
    assert spec is not None  # noqa: S101 - the engine has it
    [library] = map(Path, spec.submodule_search_locations or ())
    shutil.copytree(library, packages / "nnsight", dirs_exist_ok=True)
    rest = f"import site; site.addsitedir({str(library.parent)!r})\n"
    (packages / "rest.pth").write_text(rest, encoding="utf-8")
    column.variant.fault.act(packages / "nnsight")
    folder = run.group_folder(column.model, column.folder).path

    def make() -> Job | None:
        job = fault_free.make()
        if job is None:
            return None
        by_key = {case.key: case for case in job.cases}
        kept = {*(cell.key for cell in column.cells), *_without_nnsight(column, by_key)}
        cases = tuple(case for case in job.cases if case.key in kept)
        return replace(job, folder=folder, cases=cases)

    return replace(
        fault_free,
        id=name,
        make=make,
        launch=replace(fault_free.launch, python=root / "bin" / "python"),
        after=(*fault_free.after, fault_free.id),
        folder=folder,
    )


def _make_expecting(make: Callable[[], Job | None], backend: Backend) -> Job | None:
    """Make the job verify that its engine is what its column says."""
    job = make()
    return job and replace(job, expect=expected(backend, job.settings, job.precision))


def _shared_jobs(
    run: RunFolder, faulty: Sequence[FaultyColumn], by_id: Mapping[str, Planned]
) -> list[Planned]:
    groups: dict[tuple[str, str, Precision], list[FaultyColumn]] = {}
    for column in faulty:
        key = (column.model, column.backend.id, column.precision)
        groups.setdefault(key, []).append(column)
    shared = []
    for (model, backend, precision), members in groups.items():
        fault_free = by_id[f"{model}:{gathered_in(backend, precision)}"]
        for number, together in enumerate(_loads(members), start=1):
            which = SHARED if number == 1 else f"{SHARED}-{number}"
            name = gathered_in(f"{backend}{MARK}{which}", precision)
            shared.append(
                replace(
                    fault_free,
                    id=f"{model}:{name}",
                    make=partial(_make_shared, run, fault_free.make, together, name),
                    folder=run.group_folder(model, name).path,
                    cached=False,
                )
            )
    return shared


def _loads(members: Sequence[FaultyColumn]) -> Iterable[Sequence[FaultyColumn]]:
    """Yield groups of columns that share an engine load."""
    cells, together = 0, list[FaultyColumn]()
    for column in members:
        together.append(column)
        cells += len(column.cells)
        if cells >= CELLS_OF_A_LOAD:
            yield together
            cells, together = 0, []
    if together:
        yield together


def _make_shared(
    run: RunFolder, make: Callable[[], Job | None], members: Sequence[FaultyColumn], name: str
) -> Job:
    """Make the job that runs many columns in one worker, and link each column's files."""
    job = make()
    if job is None:
        raise ConformanceError("the fault-free column has no job to take a fault's from")
    fault_free = {case.key: case for case in job.cases}
    cases: list[Case] = []
    target = run.group_folder(job.model.id, name)
    for column in members:
        without = _without_nnsight(column, fault_free)
        faulty_group = run.group_folder(job.model.id, column.folder)
        (faulty_group.path / "cells").mkdir(parents=True, exist_ok=True)
        link(faulty_group.path / "group.json", target.path / "group.json")
        fault_free_group = run.group_folder(job.model.id, column.fault_free_folder)
        # A fault at a block's border does not affect these: use those of the column without it.
        acts = column.variant.fault.point.without_block
        for key in () if acts else without:
            link(faulty_group.cell(key), fault_free_group.cell(key))
        for key in (*(cell.key for cell in column.cells), *(without if acts else ())):
            plain = fault_free[key]
            case = replace(plain, name=f"{plain.name}{MARK}{column.variant.id}")
            cases.append(case)
            link(faulty_group.cell(key), target.cell(case.key))
    options = {"engine": job.backend.engine, "options": dict(job.backend.options)}
    faulty = Column(replace(job.backend, id=name, engine=ENGINE, options=options))
    return replace(job, engine=ENGINE, column=faulty, folder=target.path, cases=tuple(cases))


def _without_nnsight(column: FaultyColumn, fault_free: Mapping[str, Case]) -> list[str]:
    """Return the cases by which the judge attributes this column's failures: the engine alone on
    its cells' prompts, and on those that show whether a column confirms the reference.
    """
    asked = {case_of(name, PAIR).key for name in WITHOUT_NNSIGHT}
    for cell in column.cells:
        beside = (alone(name, fault_free[cell.key]) for name in WITHOUT_NNSIGHT)
        asked |= {case.key for case in beside if case is not None and not case.settings}
    return [key for key in fault_free if key in asked]

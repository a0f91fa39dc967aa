"""Faulty columns: which there are, what workers run them, and where their files lie.

Most faults share one engine load: a worker runs one case after another, each with the fault
that its name says, and every fault's cells appear as a column of their own by links. So a
faulty column is stored, read and judged like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.builtin.engine_alone import WITHOUT_NNSIGHT, alone, case_of
from conformance.errors import ConformanceError
from conformance.planning.jobs import FORCED, expected, launch, planned_jobs
from conformance.records import Backend, Case, Cell, Column, Job, Model, Precision, Side
from conformance.runner import Limits, Planned
from conformance.scenario import PAIR, Scenario
from conformance.selftest.fault import CLIENTS, MARK, WITH_A_BLOCK, Fault, Variant
from conformance.store import RunFolder, gathered_in, link

ENGINE = "conformance.selftest.injecting.engine:open_engine"
#: The groups of a model's and a backend's faults that can share an engine load.
SHARED = "faults"
#: Cells that one load runs, give or take a column: a load takes some seconds, and a cell of a real
#: model in float32 as many, while the processors that have no group to run are idle.
CELLS_OF_A_LOAD = 50
#: Cells that are to hang are waited for no longer than this.
SHORT = Limits(cell=10.0, load=120.0, close=10.0)


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
    def precision(self) -> Precision:
        return self.variant.fault.precision

    @property
    def folder(self) -> str:
        """The name of the folder of what it gathers."""
        return gathered_in(self.id, self.precision)

    @property
    def honest_folder(self) -> str:
        """The name of the folder of what the column without the fault gathers."""
        return gathered_in(self.backend.id, self.precision)

    def as_judged(self) -> Column:
        """The column as the judge sees it.

        What is at fault on one stage as well is compared with one stage at fault; what only
        the transport does, with an honest one.
        """
        if self.variant.fault.side is Side.PIPELINE:
            return Column(replace(self.backend, id=self.id))
        options = {**self.backend.options, "variant": self.variant.id}
        return Column(replace(self.backend, id=self.id, options=options))

    def as_run(self) -> Column:
        """The column with an engine load of its own."""
        options = {
            "engine": self.backend.engine,
            "options": {**self.backend.options, **self.variant.fault.options},
            "variant": self.variant.id,
        }
        return Column(replace(self.backend, id=self.id, engine=ENGINE, options=options))


def fits(fault: Fault, model: Model) -> bool:
    """Whether the model is and has what the fault is about."""
    is_one = not fault.architectures or model.architecture in fault.architectures
    return is_one and set(fault.parts) <= set(model.parts)


def shared_out(
    faults: Sequence[Fault], models: Sequence[Model], general: Sequence[str] | None = None
) -> list[tuple[Model, tuple[Fault, ...]]]:
    """The faults that each model is injected with: a `general` one (None: every model) with all
    that fit it, each of the others, in their order, with those that fit no general one and none
    before it.
    """
    taken: set[str] = set()
    shares: dict[str, tuple[Fault, ...]] = {}
    for model in sorted(models, key=lambda model: general is not None and model.id not in general):
        own = tuple(fault for fault in faults if fits(fault, model))
        if general is not None:
            own = tuple(fault for fault in own if not fault.models or model.id in fault.models)
        if general is not None and model.id not in general:
            own = tuple(fault for fault in own if fault.id not in taken)
        shares[model.id] = own
        taken |= {fault.id for fault in own}
    return [(model, shares[model.id]) for model in models]


def columns(
    faults: Iterable[Fault], model: Model, backends: Sequence[Backend], most: int | None = None
) -> tuple[FaultyColumn, ...]:
    """Every faulty column of a model; of each fault the last `most` variants only."""
    return tuple(
        FaultyColumn(backend, variant, _cells(model, f"{backend.id}{MARK}{variant.id}", variant))
        for fault in faults
        if fits(fault, model)
        for backend in backends
        if backend.id in fault.backends
        for variant in fault.variants()[-(most or 0) :]
    )


def _cells(model: Model, column: str, variant: Variant) -> tuple[Cell, ...]:
    return tuple(Cell(model.id, column, *name.split(".", 1)) for name in variant.fault.cases)


def honest_cells(
    faulty: Iterable[FaultyColumn], models: Sequence[Model], backends: Sequence[Backend]
) -> tuple[Cell, ...]:
    """The cells without a fault that correspond to some cell with one, on all of the columns; but
    what clients send, no other column runs, and they little that is injected elsewhere.
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


def jobs(
    run: RunFolder,
    faulty: Sequence[FaultyColumn],
    models: Sequence[Model],
    backends: Sequence[Backend],
    honest: Sequence[Cell],
    scenarios: Mapping[str, Scenario],
    *,
    folder: Path | tuple[Path, ...],
    cache: Path,
) -> list[Planned]:
    """The jobs of the honest run, of the faulty columns and of what all of them generated; last
    those whose cells are to hang or die: they fill what the long ones leave idle.
    """
    everything = [*honest, *(cell for column in faulty for cell in column.cells)]
    kinds = {column.id: column.as_run() for column in faulty}
    planned = planned_jobs(
        run,
        models,
        (*map(Column, backends), *kinds.values()),
        everything,
        scenarios,
        folder=folder,
        cache=cache,
        precisions=tuple(Precision),
    )
    by_id = {job.id: job for job in planned}
    single: dict[str, Planned] = {}
    brief: list[Planned] = []
    for column in faulty:
        if not column.variant.fault.alone:
            continue
        name = f"{column.cells[0].model}:{column.folder}"
        job = replace(by_id[name], launch=launch(Column(column.backend)))
        if column.variant.fault.short:
            brief.append(replace(job, limits=SHORT))
        else:
            single[name] = replace(job, make=_expecting(job.make, column.backend))
    shared = _shared_jobs(
        run, [column for column in faulty if not column.variant.fault.alone], by_id
    )
    names = {
        f"{cell.model}:{gathered_in(column.id, precision)}"
        for column in faulty
        for cell in column.cells
        for precision in Precision
    }
    long = [job for job in planned if job.id not in names]
    forced = [job for job in long if job.id.endswith(f":{FORCED.id}")]
    unforced = [job for job in long if not job.id.endswith(f":{FORCED.id}")]
    ready = [*unforced, *single.values(), *shared]
    ready_by_id = {job.id: job for job in ready}
    forced = [
        replace(job, after=tuple(name for name in ready_by_id if name.startswith(_model(job.id))))
        for job in forced
    ]
    return [*ready, *forced, *brief]


def _model(job: str) -> str:
    return f"{job.split(':', 1)[0]}:"


def _expecting(make: Callable[[], Job | None], backend: Backend) -> Callable[[], Job | None]:
    """The job, which must prove to be what its column says."""

    def expecting() -> Job | None:
        job = make()
        if job is None:
            return None
        return replace(job, expect=expected(backend, job.settings, job.precision))

    return expecting


def _shared_jobs(
    run: RunFolder, faulty: Sequence[FaultyColumn], by_id: Mapping[str, Planned]
) -> list[Planned]:
    groups: dict[tuple[str, str, Precision], list[FaultyColumn]] = {}
    for column in faulty:
        key = (column.cells[0].model, column.backend.id, column.precision)
        groups.setdefault(key, []).append(column)
    shared = []
    for (model, backend, precision), members in groups.items():
        honest = by_id[f"{model}:{gathered_in(backend, precision)}"]
        for number, together in enumerate(_loads(members), start=1):
            which = SHARED if number == 1 else f"{SHARED}-{number}"
            name = gathered_in(f"{backend}{MARK}{which}", precision)
            shared.append(
                replace(
                    honest,
                    id=f"{model}:{name}",
                    make=_sharing(run, honest.make, together, name),
                    folder=run.group_folder(model, name).path,
                    cached=False,
                )
            )
    return shared


def _loads(members: Sequence[FaultyColumn]) -> Iterable[Sequence[FaultyColumn]]:
    """The columns, those of one engine load together."""
    cells, together = 0, list[FaultyColumn]()
    for column in members:
        together.append(column)
        cells += len(column.cells)
        if cells >= CELLS_OF_A_LOAD:
            yield together
            cells, together = 0, []
    if together:
        yield together


def _sharing(
    run: RunFolder, make: Callable[[], Job | None], members: Sequence[FaultyColumn], name: str
) -> Callable[[], Job | None]:
    """One worker for many columns: the job, and the links by which each column is found."""

    def shared() -> Job | None:
        job = make()
        if job is None:
            raise ConformanceError("the honest column has no job to take a fault's from")
        honest = {case.key: case for case in job.cases}
        cases: list[Case] = []
        target = run.group_folder(job.model.id, name)
        for column in members:
            without = _without_nnsight(column, honest)
            faulty_group = run.group_folder(job.model.id, column.folder)
            (faulty_group.path / "cells").mkdir(parents=True, exist_ok=True)
            link(faulty_group.path / "group.json", target.path / "group.json")
            honest_group = run.group_folder(job.model.id, column.honest_folder)
            # A fault of what passes to and from a block is not in there: that is the honest one's.
            acts = column.variant.fault.point not in WITH_A_BLOCK
            for key in () if acts else without:
                link(faulty_group.cell(key), honest_group.cell(key))
            for key in (*(cell.key for cell in column.cells), *(without if acts else ())):
                case = replace(honest[key], name=f"{honest[key].name}{MARK}{column.variant.id}")
                cases.append(case)
                link(faulty_group.cell(key), target.cell(case.key))
        backend = job.backend
        options = {"engine": backend.engine, "options": dict(backend.options)}
        faulty = Column(replace(backend, id=name, engine=ENGINE, options=options))
        return replace(job, engine=ENGINE, column=faulty, folder=target.path, cases=tuple(cases))

    return shared


def _without_nnsight(column: FaultyColumn, honest: Mapping[str, Case]) -> list[str]:
    """The cases by which the judge blames this column: what the engine does with the prompts of its
    cells, and with those by which a column stands behind the truth.
    """
    asked = {case_of(name, PAIR).key for name in WITHOUT_NNSIGHT}
    for cell in column.cells:
        beside = (alone(name, honest[cell.key]) for name in WITHOUT_NNSIGHT)
        asked |= {case.key for case in beside if case is not None and not case.settings}
    return [key for key in honest if key in asked]

"""Create the jobs of a run's workers, in the order of their dependencies.

For each model: build its checkpoint and run the reference. Every backend runs in parallel as soon
as the reference has the probe, the only part of the reference that an engine is given. Then the
reference runs again: along the tokens that a backend chose differently, and layer by layer where
one computed something else.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from conformance.engines import ENGINES, FRONTS, LIBRARIES, environment_of, preload
from conformance.errors import ConformanceError
from conformance.runner.planning import engine_settings, plan
from conformance.runner.scheduling import Launch, Planned
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.along_candidate import case_along
from conformance.spec.builtin import one_layer
from conformance.spec.builtin.engine_alone import cases_beside
from conformance.spec.builtin.probe import PROBED, PROBING
from conformance.spec.checkpoints import Checkpoint, locate, patience
from conformance.spec.generated_tokens import by_member
from conformance.spec.records import Backend, Case, Cell, Column, Job, Model, Precision, Status
from conformance.spec.scenario import Scenario

#: Not a column: every column is compared with it.
REFERENCE = Column(Backend(id="reference", engine="reference", default=False))
#: The reference again, along the tokens that a backend generated.
FORCED = Column(Backend(id="reference-forced", engine="reference", default=False))
#: The reference's job for cells that run in bf16 because an engine refuses float32.
AGAIN = "reference-again"
#: Not a column either: creates the checkpoint.
BUILD = Column(Backend(id="build", engine="build", default=False))

#: The columns of one model with their cells.
Columns = Sequence[tuple[Column, Sequence[Cell]]]

#: Scenarios and cases.
_Names = set[tuple[str, str]]

#: Engines whose observations do not depend on what is being tested: cached between runs.
CACHED = frozenset({"hf", "reference"})

#: A model has few cells if it has at most this many times the fewest of any.
_FEW = 1.25


def planned_jobs(
    run: RunFolder,
    models: Sequence[Model],
    columns: Sequence[Column],
    cells: Iterable[Cell],
    scenarios: Mapping[str, Scenario],
    *,
    folder: Path | tuple[Path, ...],
    cache: Path,
    precisions: Sequence[Precision] = (Precision.BF16,),
    float32_only: Collection[Cell] = (),
    settled: Collection[Cell] = (),
    lean: bool = False,
) -> list[Planned]:
    """Return every job of a run. `folder` holds the scenario files, `cache` the checkpoints.

    Every column runs its cells once in each of the `precisions`, `settled` ones not again.
    `float32_only` cells run in no other, unless their column refuses the model in float32. A `lean`
    run omits baseline runs of another precision, engines without nnsight, and one-layer tests.
    Columns on other environments come last, one environment at a time, so that few zygotes coexist.
    """
    by_model = {model.id: model for model in models}
    by_id = {column.id: column for column in columns}
    wanted = plan.groups(cell for cell in cells if not by_id[cell.backend].untestable)
    jobs: list[Planned] = []
    once = frozenset(float32_only)
    planned = [cell for members in wanted.values() for cell in members]
    sizes = Counter(cell.model for cell in planned)
    sizes.update(cell.model for cell in planned if cell not in once)
    for model_id in _small_one_first([by_model[model] for model in sizes], sizes):
        only = frozenset(cell for cell in once if cell.model == model_id)
        jobs += _ModelJobMaker(
            *(run, by_model[model_id], scenarios, folder, cache, precisions, only),
            settled=frozenset(settled),
            lean=lean,
        ).jobs([(by_id[col], cells) for (model, col), cells in wanted.items() if model == model_id])
    places = list(dict.fromkeys([Path(sys.executable), *(job.launch.python for job in jobs)]))
    return sorted(jobs, key=lambda job: places.index(job.launch.python))


def _small_one_first(models: Sequence[Model], sizes: Mapping[str, int]) -> list[str]:
    """Return the ids in the order in which the models run: first a locally built one with few
    cells, then all others, trained ones and those with the most cells before the rest.

    Otherwise nobody sees a verdict for minutes, and the last model runs alone. A model with the
    very fewest cells lacks what others have, and may be a slow one: those with recurrent layers.
    """
    tiny = {model.id for model in models if model.sources[0].kind == "tiny"}
    ids = sorted(sizes, key=lambda name: (name in tiny, -sizes[name]))
    few = _FEW * min((sizes[name] for name in tiny), default=0)
    first = [name for name in sizes if name in tiny and sizes[name] <= few][:1]
    return list(dict.fromkeys([*first, *ids]))


def build_job(run: RunFolder, model: Model, cache: Path) -> Planned:
    """Return the job that builds a model's checkpoint if there is none."""
    build, _ = _ModelJobMaker(run, model, {}, run.path, cache).groundwork(set(), set())
    return build


@dataclass(frozen=True, eq=False)
class _ModelJobMaker:
    """The jobs of one model, created when they are due: only then does the checkpoint exist."""

    run: RunFolder
    model: Model
    scenarios: Mapping[str, Scenario]
    folder: Path | tuple[Path, ...]
    cache: Path
    precisions: Sequence[Precision] = (Precision.BF16,)
    float32_only: frozenset[Cell] = frozenset()
    settled: frozenset[Cell] = frozenset()
    lean: bool = False

    def jobs(self, columns: Columns) -> list[Planned]:
        names = _names(cell for _, cells in columns for cell in self._due(cells))
        in_bf16 = self._names_in_bf16(columns)
        build, reference = self.groundwork(names, in_bf16)
        engines: dict[Precision, list[Planned]] = {precision: [] for precision in Precision}
        for column, cells in columns:
            # Only then is it known whether the engine refuses the model in float32.
            after: tuple[str, ...] = ()
            for precision in self.precisions:
                own = [
                    self._planned(
                        group.folder(gathered_in(column.id, precision)),
                        column,
                        self._column(column, cells, group, precision),
                        needs_cells=((reference.id, PROBED),),
                        after=after,
                    )
                    for group in self._groups(column, cells)
                ]
                engines[precision] += own
                after = _ids(own) if not self.float32_only.isdisjoint(cells) else ()
        every = list(chain(*engines.values()))
        if self.float32_only:
            make = partial(self._reference_again, columns, in_bf16)
            needs, after = (reference.id,), _ids(every)
            every.append(self._planned(AGAIN, REFERENCE, make, needs=needs, after=after))
        follow = partial(self._forced, columns)
        forced = self._planned(FORCED.id, FORCED, follow, needs=(reference.id,), after=_ids(every))
        return [build, reference, *every, forced]

    def _groups(
        self, column: Column, cells: Sequence[Cell]
    ) -> Iterator[engine_settings.SettingsGroup]:
        """Yield the groups with due cells. All cells are split, so that the main group is the same
        if only a few are due.
        """
        for group in engine_settings.split(column, cells, self.scenarios) if cells else ():
            if cells := self._due(group.cells):
                yield replace(group, cells=cells)

    def _due(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        return tuple(cell for cell in cells if cell not in self.settled)

    def _in(self, cells: Sequence[Cell], precision: Precision) -> tuple[Cell, ...]:
        """Return the due ones of a column's cells that run in this precision, as far as is known:
        whether the engine refuses float32 is, once it has run in it.
        """
        due = self._due(cells)
        if precision is Precision.FLOAT32 or not self.float32_only or self.run.refuses(cells):
            return due
        return tuple(cell for cell in due if cell not in self.float32_only)

    def _names_in_bf16(self, columns: Columns) -> _Names:
        """Return what a column runs in bf16 by the plan, or has run because it refuses float32."""
        due = (cell for _, cells in columns for cell in self._due(cells))
        return _names(cell for cell in due if cell not in self.float32_only or self._ran(cell))

    def _ran(self, cell: Cell) -> bool:
        """Return whether a cell was observed in bf16."""
        outcome = self.run.outcome(cell.model, gathered_in(cell.backend, Precision.BF16), cell.key)
        return outcome is not None and outcome.status is Status.OK

    def groundwork(self, names: _Names, in_bf16: _Names) -> tuple[Planned, Planned]:
        """Return the jobs of the checkpoint and the reference; bf16 runs only for `in_bf16`."""
        build = self._planned(BUILD.id, BUILD, self._build, load=patience(self.model))
        make = partial(self._reference, names, in_bf16)
        return build, self._planned(REFERENCE.id, REFERENCE, make, needs=(build.id,))

    def _planned(
        self, folder: str, column: Column, make: Callable[[], Job | None], **more: Any
    ) -> Planned:
        return planned(
            self.run,
            self.model.id,
            folder,
            column,
            make,
            cached=column.engine in CACHED,
            ours=column in (BUILD, REFERENCE, FORCED),
            # Built once, with this user's access to weights, and sent to other machines.
            at_home=column is BUILD,
            **more,
        )

    def _checkpoint(self) -> Checkpoint:
        checkpoint = locate(self.model, self.cache)
        if checkpoint is None:
            raise ConformanceError(
                f"the checkpoint of {self.model.id!r} is gone from the cache",
                path=self.cache,
                remedy="run again",
            )
        return checkpoint

    def _job(self, column: Column, cases: tuple[Case, ...], folder: str = "", **more: Any) -> Job:
        if column is BUILD:
            more["checkpoint"] = self.cache
        else:
            checkpoint = self._checkpoint()
            more |= {"checkpoint": checkpoint.path, "digest": checkpoint.digest}
        return Job(
            engine=ENGINES.get(column.engine, column.engine),
            model=self.model,
            column=column,
            folder=self.run.group_folder(self.model.id, folder or column.id).path,
            scenarios=self.folder,
            cases=cases,
            **more,
        )

    def _build(self) -> Job | None:
        return None if locate(self.model, self.cache) else self._job(BUILD, ())

    def _cases(self, wanted: _Names) -> tuple[Case, ...]:
        layers = self._checkpoint().layers
        return tuple(
            case
            for scenario in self.scenarios.values()
            for case in scenario.expand(layers)
            if (case.scenario, case.name) in wanted
        )

    def _reference(self, names: _Names, in_bf16: _Names) -> Job:
        probe = PROBING.expand(self._checkpoint().layers)
        cases = self._cases(names)
        # The longest first: what changes nothing is computed once, also for its first steps.
        longest = sorted(cases + self._beside(cases), key=lambda case: -case.steps)
        coarse = self._cases(in_bf16)
        both = {case.key for case in (*probe, *coarse, *self._beside(coarse, Precision.BF16))}
        return self._reference_job(REFERENCE, (*probe, *longest), both)

    def _reference_again(self, columns: Columns, done: _Names) -> Job | None:
        """Return the reference's job for what runs in bf16 because an engine refuses float32."""
        names = self._names_in_bf16(columns) - done
        return self._reference(names, names) if names else None

    def _reference_job(self, column: Column, cases: tuple[Case, ...], both: Collection[str]) -> Job:
        """Return a job of the reference. A lean run's has no other precisions than the run."""
        only = tuple(case.key for case in cases if case.key not in both)
        expect = {"precisions": sorted(self.precisions)} if self.lean else {}
        return self._job(column, cases, float32_only=only, expect=expect)

    def _beside(
        self, cases: Iterable[Case], precision: Precision = Precision.FLOAT32
    ) -> tuple[Case, ...]:
        return () if self.lean else beside(cases, precision)

    def _column(
        self,
        column: Column,
        cells: Sequence[Cell],
        group: engine_settings.SettingsGroup,
        precision: Precision,
    ) -> Callable[[], Job | None]:
        probe = self.run.group_folder(self.model.id, REFERENCE.id).cell(PROBED)
        own = gathered_in(column.id, precision)

        def make() -> Job | None:
            names = _names(set(self._in(cells, precision)) & set(group.cells))
            if not names:
                return None
            cases = self._cases(names)
            job = self._job(
                column,
                cases + self._beside(cases, precision),
                own,
                probe=probe,
                expect=expected(column.backend, group.settings, precision),
                settings=group.settings,
                precision=precision,
            )
            return job if group.main else engine_settings.separate(self.run, job, group, own)

        return make

    def _forced(self, columns: Columns) -> Job | None:
        """Return a job for cases with other tokens than the reference's, and one-layer tests."""
        gathered: dict[str, list[tuple[Case, str, Precision]]] = {}
        for (place, cells), precision in product(columns, self.precisions):
            cases = self._cases(_names(self._in(cells, precision)))
            for case in cases + self._beside(cases, precision):
                column = gathered_in(place.id, precision)
                gathered.setdefault(case.key, []).append((case, column, precision))
        forced: dict[str, Case] = {}
        both: set[str] = set()
        for key, places in gathered.items():
            # The reference's observations are by far the largest: read them once for all columns.
            members = by_member(self.run.observations(self.model.id, REFERENCE.id, key))
            for case, column, precision in places:
                observed = self.run.observations(self.model.id, column, key)
                folder = self.run.group_folder(self.model.id, column).cell(case.key)
                stored = folder / "observations.safetensors"
                along = case_along(case, observed, members, precision, stored)
                new = [along] if along.key != case.key else []
                tried = one_layer.suspicious(observed, members, precision) or (
                    precision is Precision.BF16 and self._alone(place, case, observed)
                )
                if not self.lean and tried:
                    new.append(one_layer.case_of(case, column, stored))
                forced |= {each.key: each for each in new}
                both |= {each.key for each in new if precision is Precision.BF16}
        return self._reference_job(FORCED, tuple(forced.values()), both) if forced else None

    def _alone(self, column: Column, case: Case, observed: Mapping[str, Tensor]) -> bool:
        """Return whether bf16 alone decides a cell whose layers were all read: then test each."""
        layers = {site.layer for site in one_layer.unedited(observed)}
        if not layers >= set(range(self._checkpoint().layers)):
            return False
        exact = gathered_in(column.id, Precision.FLOAT32)
        outcome = self.run.outcome(self.model.id, exact, case.key)
        return outcome is None or outcome.status in {Status.UNSUPPORTED, Status.SKIPPED}


def _ids(jobs: Iterable[Planned]) -> tuple[str, ...]:
    return tuple(job.id for job in jobs)


def _names(cells: Iterable[Cell]) -> _Names:
    return {(cell.scenario, cell.case) for cell in cells}


def beside(cases: Iterable[Case], precision: Precision) -> tuple[Case, ...]:
    """Return the cases that an engine runs without nnsight in addition to these.

    For cases with engine settings, only in float32: in bf16 the reference would have to follow
    tokens that rounding chose.
    """
    plainly = precision is Precision.FLOAT32
    return cases_beside(case for case in cases if plainly or not case.settings)


def planned(
    run: RunFolder,
    model: str,
    folder: str,
    column: Column,
    make: Callable[[], Job | None],
    **more: Any,
) -> Planned:
    """Return a model's job that writes into a folder of the run; `more` are fields of `Planned`."""
    path = run.group_folder(model, folder).path
    return Planned(f"{model}:{folder}", make, launch(column), folder=path, **more)


def launch(column: Column) -> Launch:
    """Return where a column's workers run. Columns with equal launches share a zygote."""
    return Launch(
        python=Path(column.interpreter or sys.executable),
        preload=preload(column.engine),
        env=tuple(sorted(environment_of(column.backend.options).items())),
    )


def expected(
    backend: Backend,
    settings: Mapping[str, Any] = MappingProxyType({}),
    precision: Precision = Precision.BF16,
) -> dict[str, Any]:
    """Return what the engine must report about itself for its cells to count."""
    dtype = f"torch.{precision.dtype}"
    if backend.engine == "hf":
        attention = backend.options.get("attn_implementation")
        return {"engine": "hf", "dtype": dtype} | ({"attention": attention} if attention else {})
    if backend.engine in LIBRARIES:
        return {"engine": backend.engine, "dtype": dtype}
    if backend.engine not in FRONTS:
        return {}
    return {
        "engine": "vllm",
        "dtype": dtype,
        "front": FRONTS[backend.engine],
        "pipeline_size": backend.pipeline,
        "tensor_size": backend.tensor,
        "ranks": backend.pipeline * backend.tensor,
        "eager": "taps" not in backend.options,
        "prefix_caching": bool(settings.get("prefix_cache")),
        "chunked_prefill": "step_tokens" in settings,
        "extraction": bool(settings.get("extraction")),
    }

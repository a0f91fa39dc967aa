"""A campaign: draw, run, judge, and minimise programs that differ, until the time is over.

All batches are jobs of one runner, so that the processes that workers are forked from stay alive. A
batch is filled when it is due. While the columns run one batch, the reference computes the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.commands.fuzz import batch as batches
from conformance.commands.fuzz import corpus, draw, shrinking, tally
from conformance.commands.fuzz.batch import ProgramBatch, ProgramTrial
from conformance.commands.fuzz.causes import (
    Failure,
    ProgramDifference,
    cause_of,
    describe_failure,
    differs,
    find_operations,
    find_reason,
    is_known_difference,
    is_undetermined,
    kinds_of,
)
from conformance.commands.fuzz.shrinking import Shrinking, Stage, few_columns
from conformance.errors import ConformanceError, ExitCode
from conformance.judge.expectations import KnownGaps
from conformance.judge.expectations.conditions import where_in
from conformance.judge.runs.one_model import model_info
from conformance.runner.planning.jobs import BUILD, FORCED, REFERENCE, build_job, launch
from conformance.runner.planning.machine import conditions
from conformance.runner.scheduling import Event, GroupFinished, Planned, RunSummary
from conformance.runner.scheduling import run as run_jobs
from conformance.runner.store import create_run, gathered_in, point_latest
from conformance.runner.store.files import read_record, write_record
from conformance.spec.checkpoints import locate
from conformance.spec.programs import Program
from conformance.spec.records import (
    Backend,
    Cell,
    CellResult,
    Column,
    Group,
    Job,
    Model,
    Precision,
    Verdict,
)

STATE = "campaign.json"
#: Batches of one call; --resume starts more.
MOST_BATCHES = 300
#: One batch in this many is also gathered in bf16.
BF16_SHARE = 6
#: How many similar programs are minimised at the same time.
ALIKE = 2


def create_campaign(reports: Path) -> Path:
    """Create the folder of a campaign; `latest` points to it."""
    run = create_run(reports / "fuzz", datetime.now(UTC))
    point_latest(run)
    return run.path


def open_campaign(reports: Path, name: str) -> Path:
    """Return a campaign's folder. Raises ConformanceError if there is none of this name."""
    path = reports / "fuzz" / name
    if not (path / STATE).is_file():
        raise ConformanceError(
            f"there is no campaign {name!r}", path=path.parent, remedy="begin one: conformance fuzz"
        )
    return path.resolve()


def read(folder: Path) -> tally.CampaignState:
    """Read a campaign's state. Raises ConformanceError for a missing or invalid file."""
    state = read_record(tally.CampaignState, folder / STATE, mistake=tally.mistake)
    if state is None:
        raise ConformanceError("there is no campaign", path=folder)
    return state


class Campaign:
    """One campaign in progress. `tell` receives lines of progress."""

    def __init__(
        self,
        state: tally.CampaignState,
        models: Sequence[Model],
        backends: Sequence[Backend],
        *,
        folder: Path,
        gaps: KnownGaps,
        cache: Path,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.state = state
        self.models = {model.id: model for model in models}
        self.backends = tuple(backends)
        self.folder = folder
        self.gaps = gaps
        self.cache = cache
        self.tell = tell
        known = {*self.models, *(backend.id for backend in self.backends)}
        for difference in state.waiting:
            names = {difference.model, *(failed.backend for failed in difference.failures)}
            for name in sorted(names - known):
                raise ConformanceError(
                    f"a program waits for {name!r}, which this campaign does not run",
                    path=self.folder / STATE,
                    remedy="begin another one: conformance fuzz",
                )
        self.corpus = corpus.read(Path(state.asked.corpus))
        is_replayed = bool(state.replayed) or not self.corpus
        self._unreplayed = [] if is_replayed else list(self.models)
        self._batches: dict[int, ProgramBatch | None] = {}
        self._in_work: list[Shrinking] = []
        self._due: list[Shrinking] = []
        #: Includes batches that are not judged yet; a resumed campaign draws these again.
        self._draws = dict(state.draws)
        self._before = state.seconds
        self._begun = time.monotonic()
        self._failed: Exception | None = None
        self._take_up_all(state.waiting)

    def run(self) -> RunSummary:
        """Run until the time is over and all findings are minimised. Ctrl-C ends it early; verdicts
        are kept.
        """

        def hear(event: Event) -> None:
            if isinstance(event, GroupFinished):
                number, _, kind = event.id.partition(":")
                if kind == BUILD.id and not event.ok:
                    self._failed = self._failed or ConformanceError(
                        event.reason, code=ExitCode.UNEXPECTED
                    )
                if kind == FORCED.id:
                    self._judge(int(number))

        self._save()
        summary = run_jobs(
            list(self._planned()),
            logs=self.folder / "zygotes",
            jobs=2,
            limits=batches.LIMITS,
            device=conditions(),
            on_event=hear,
        )
        if self._failed is not None:
            raise self._failed
        self._save(finished=not summary.interrupted)
        return summary

    def describe(self, differences: Sequence[ProgramDifference]) -> None:
        """Replace these differences by the versions that name their written files."""
        by_cause = {difference.cause: difference for difference in differences}
        self._update(
            differences=tuple(by_cause.get(one.cause, one) for one in self.state.differences)
        )
        self._save(finished=True)

    def _update(self, **fields: Any) -> None:
        self.state = replace(self.state, **fields)

    # --- what is due ----------------------------------------------------------

    def _planned(self) -> Iterator[Planned]:
        """Yield the jobs, the same ones for every batch. Each decides when it is due whether there
        is anything to do.
        """
        # Checkpoints are built first: programs are drawn for their layers.
        built = [
            build_job(create_run(self.folder / "checkpoints", datetime.now(UTC)), model, self.cache)
            for model in self.models.values()
        ]
        yield from built
        ended: list[tuple[str, ...]] = [tuple(planned.id for planned in built)] * 2
        for number in range(MOST_BATCHES):
            build, reference = f"{number}:{BUILD.id}", f"{number}:{REFERENCE.id}"
            # The reference does not wait for the previous batch: it computes while its columns run.
            yield self._job(build, BUILD, after=ended[-2])
            yield self._job(reference, REFERENCE, needs=(build,))
            columns = {
                f"{number}:{gathered_in(backend.id, precision)}": Column(backend)
                for backend in self.backends
                for precision in Precision
            }
            for name, column in columns.items():
                yield self._job(name, column, needs=(reference,))
            forced = f"{number}:{FORCED.id}"
            yield self._job(forced, FORCED, after=(reference, *columns))
            ended.append((*columns, forced))

    def _job(
        self, name: str, column: Column, *, needs: tuple[str, ...] = (), after: tuple[str, ...] = ()
    ) -> Planned:
        number, _, kind = name.partition(":")

        def make() -> Job | None:
            try:
                batch = self._batch(int(number))
                planned = batch.planned.get(kind) if batch else None
                return planned.make() if planned else None
            except Exception as error:
                self._failed = self._failed or error
                raise

        return Planned(name, make, launch(column), needs=needs, after=after, load=600.0)

    def _batch(self, number: int) -> ProgramBatch | None:
        """Fill this batch once, when it is first needed. Return None after an error."""
        if self._failed is not None:
            return None
        if number not in self._batches:
            self._batches[number] = self._fill()
        return self._batches[number]

    def _fill(self) -> ProgramBatch | None:
        """Return the next batch: programs to minimise, those of the corpus, or drawn ones."""
        trials: list[ProgramTrial] = []
        precisions: tuple[Precision, ...] = (Precision.FLOAT32,)
        if self._due:
            model = self._due[0].model
            shown: set[Precision] = set()
            for work in [one for one in self._due if one.model == model]:
                if len(trials) <= 2 * shrinking.MOST:
                    self._due.remove(work)
                    trials += [ProgramTrial(one, work.columns, work) for one in work.candidates()]
                    shown.update(work.precisions)
            precisions = tuple(one for one in Precision if one in shown)
        elif self._unreplayed:
            model = self._unreplayed.pop(0)
            entries = [entry for entry in self.corpus.values() if entry.model == model]
            trials = [ProgramTrial(entry.program, self.backends) for entry in entries]
        elif not self._over():
            model = min(self.models, key=lambda name: self._draws.get(name, 0))
            trials = self._draw(model)
            if sum(self._draws.values()) % BF16_SHARE == 0:
                precisions = tuple(Precision)
        if not trials:
            return None
        return batches.begin(
            self.folder / "batches",
            self.models[model],
            trials,
            precisions=precisions,
            cache=self.cache,
        )

    def _over(self) -> bool:
        request = self.state.asked
        if request.programs is not None:
            return sum(self._draws.values()) * request.batch >= request.programs
        return self.seconds >= 60 * request.minutes

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._begun

    def _draw(self, model: str) -> list[ProgramTrial]:
        request, before = self.state.asked, self._draws.get(model, 0)
        self._draws[model] = before + 1
        checkpoint = locate(self.models[model], self.cache)
        if checkpoint is None:
            raise ConformanceError(f"the checkpoint of {model} is gone", remedy="run again")
        shape = draw.ModelShape(checkpoint.layers, self.models[model].parts)
        programs = draw.draw(request.batch, request.seed * 100_003 + before, shape)
        return [ProgramTrial(program, self.backends) for program in programs]

    # --- what came of it ------------------------------------------------------

    def _judge(self, number: int) -> None:
        batch = self._batches.get(number)
        if batch is None:
            return
        try:
            self._account(batch, batch.judged())
        except Exception as error:
            self._failed = self._failed or error
            raise
        batch.forget()
        self._save()

    def _account(self, batch: ProgramBatch, results: Mapping[str, CellResult]) -> None:
        model = batch.model.id
        minimised: dict[Shrinking, dict[str, dict[str, Failure]]] = {}
        drawn_before = sum(self.state.drawn.values())
        for trial in batch.trials:
            program = trial.program
            cells = [
                results[Cell(model, backend.id, program.name, batches.CASE).id]
                for backend in trial.backends
            ]
            unclear = [cell for cell in cells if is_undetermined(cell)]
            if trial.work is None and unclear:
                self._update(undetermined=tally.add_counts(self.state.undetermined, [model]))
            failed = (
                f"{cell.id}: {cell.reason}"
                for cell in cells
                if cell.harness and not cell.verdict.passes and cell not in unclear
            )
            self._update(harness=(*self.state.harness, *failed))
            failures = {
                cell.backend: describe_failure(cell, self._explained(batch, cell))
                for cell in cells
                if differs(cell)
            }
            if trial.work is not None:
                minimised.setdefault(trial.work, {})[program.name] = failures
            elif any(program == entry.program for entry in self.corpus.values()):
                self._replayed(model, program, failures)
            else:
                self._count(model, program, cells)
                if failures:
                    self._take_up(model, program, failures)
        for work, failures_by_name in minimised.items():
            self._go_on(work, failures_by_name)
        total = sum(self.state.drawn.values())
        if total > drawn_before:
            self._update(draws=tally.add_counts(self.state.draws, [model]))
        self.tell(
            f"{self.seconds:.0f} s: {total} programs, {len(self.state.differences)} differences, "
            f"{len(self._in_work)} being made smaller"
        )

    def _count(self, model: str, program: Program, cells: Sequence[CellResult]) -> None:
        state = self.state
        refused = [cell.reason for cell in cells if cell.verdict is Verdict.UNSUPPORTED]
        self._update(
            drawn=tally.add_counts(state.drawn, [model]),
            verdicts=tally.add_counts(state.verdicts, [str(cell.verdict) for cell in cells]),
            covered=tally.add_counts(state.covered, tally.places(program)),
            refusals=tally.add_counts(state.refusals, refused),
        )

    def _replayed(self, model: str, program: Program, failures: Mapping[str, Failure]) -> None:
        name, entry = next((n, k) for n, k in self.corpus.items() if k.program == program)
        columns = {backend.id for backend in self.backends}
        expected = {column: kind for column, kind in entry.fails.items() if column in columns}
        kinds = kinds_of(failures)
        if kinds and expected == kinds:
            # What fails as recorded need not be minimised again.
            why, failed = entry.why or f"in the corpus as {name}", tuple(failures.values())
            found = ProgramDifference(model, program, failed, program, entry.cause, why)
            self._update(differences=(*self.state.differences, found))
        if expected and not kinds:
            self._update(fixed=(*self.state.fixed, name))
        elif expected != kinds:
            words = f"{name} fails as {kinds} on {model}, and not as {expected}"
            self._update(changed=(*self.state.changed, words))
        self._update(replayed=self.state.replayed + 1)

    def _explained(self, batch: ProgramBatch, cell: CellResult) -> str:
        group = batch.run.group(cell.model, gathered_in(cell.backend, cell.precision))
        config = model_info(batch.run, batch.model).config
        group = group or Group(cell.model, cell.backend)
        where = where_in(group, batch.model.architecture, config, device="cpu")
        plain = Cell(cell.model, cell.backend, cell.scenario, cell.case)
        return find_reason(self.gaps, cell, plain, where)

    # --- what differs ---------------------------------------------------------

    def _take_up_all(self, waiting: Sequence[ProgramDifference]) -> None:
        for difference in waiting:
            failures = {failed.backend: failed for failed in difference.failures}
            self._take_up(difference.model, difference.drawn, failures)

    def _take_up(self, model: str, program: Program, failures: Mapping[str, Failure]) -> None:
        """Minimise a program, unless its failure is a known difference."""
        remaining, stage, peeled_from = program, Stage.FEW, ""
        for difference in self.state.differences:
            if difference.model != model or not is_known_difference(failures, difference):
                continue
            operations = find_operations(difference, remaining)
            if operations is None:
                continue
            reduced = shrinking.remove_operations(remaining, operations)
            if reduced == remaining or not reduced.operations:
                self._again(difference.cause)
                return
            remaining, stage, peeled_from = reduced, Stage.PEEL, difference.cause
        kinds = kinds_of(failures).items()
        busy = [
            work
            for work in self._in_work
            if work.model == model and kinds_of(work.failures).items() <= kinds
        ]
        if len(busy) >= ALIKE and stage is Stage.FEW:
            wait = ProgramDifference(model, program, tuple(failures.values()), program, cause="")
            self._update(waiting=(*self.state.waiting, wait))
            return
        columns = few_columns(failures, self.backends)
        own = {one.id: failures[one.id] for one in columns if one.id in failures}
        programs = (model, program, remaining)
        work = Shrinking(*programs, own, columns, self.backends, stage, peeled_from)
        work.after, work.seconds = sum(self.state.drawn.values()), self.seconds
        self._in_work.append(work)
        self._due.append(work)

    def _go_on(self, work: Shrinking, results: Mapping[str, Mapping[str, Failure]]) -> None:
        work.take(results)
        if work.stage is not Stage.DONE:
            self._due.append(work)
            return
        self._in_work.remove(work)
        if not work.failures and work.peeled_from:
            self._again(work.peeled_from)
        else:
            if not work.failures:  # an intermittent difference is a finding too
                self.tell("a program differed, and did not when it was run again:")
                work.program, work.failures = work.drawn, dict(work.seen)
            self._conclude(work)
        waiting = self.state.waiting
        self._update(waiting=())
        self._take_up_all(waiting)

    def _conclude(self, work: Shrinking) -> None:
        cause = cause_of(work.model, work.program, work.failures)
        if any(earlier.cause == cause for earlier in self.state.differences):
            self._again(cause)
            return
        words = {failed.known for failed in work.failures.values()}
        explained = words.pop() if len(words) == 1 else ""
        for name, entry in self.corpus.items():
            if entry.cause == cause:
                explained = explained or entry.why or f"in the corpus as {name}"
        difference = work.difference(cause, explained)
        self._update(differences=(*self.state.differences, difference))
        for line in tally.describe_difference(difference):
            self.tell(line)

    def _again(self, cause: str) -> None:
        """Count one more program that shows a difference."""
        self._update(
            differences=tuple(
                replace(one, again=one.again + 1) if one.cause == cause else one
                for one in self.state.differences
            )
        )

    def _save(self, *, finished: bool = False) -> None:
        self._update(seconds=self.seconds, finished=finished)
        unfinished = (work.difference() for work in self._in_work)
        state = replace(self.state, waiting=(*self.state.waiting, *unfinished))
        write_record(self.folder / STATE, state)

"""The workers of a check: transformers first, then every engine in float32 and in bf16."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

from conformance import loose_json
from conformance.builtin.probe import PROBED, PROBING
from conformance.builtin.user_trace import USER_TRACE, case_of
from conformance.check.search.session import Session, Steps
from conformance.check.source import UserFile
from conformance.checkpoints import cache_folder, locate, patience
from conformance.errors import ConformanceError
from conformance.inputs import usable
from conformance.planning.jobs import BUILD, REFERENCE, expected, launch
from conformance.records import (
    Backend,
    Case,
    Cell,
    Column,
    Job,
    Model,
    Precision,
    Status,
    Thresholds,
)
from conformance.runner import (
    CellStarted,
    Event,
    GroupLoaded,
    GroupStarted,
    Limits,
    Planned,
    Summary,
    WorkerDied,
)
from conformance.runner import run as run_jobs
from conformance.scenario import PAIR
from conformance.store import RunFolder, RunPlan, create_run, gathered_in, point_latest

_ENGINES = "conformance.engines.user_trace"

#: Tokens of a sequence that an engine is opened for, where the model has so many.
LENGTH = 2048

GIB = 1 << 30

#: Of an engine's cache, at least.
CACHE_BYTES = 64 << 20

#: The column of a check without any engine: whether the files run on transformers.
HF = Backend("hf", "hf")

#: The column of numbers that another tool recorded.
DUMP = Backend("dump", "dump")

#: transformers in all of its ways: what every engine is compared with.
TRUTH = Column(Backend(REFERENCE.id, HF.engine, default=False))


@dataclass(frozen=True)
class Asked:
    """What a check was asked: which files, on which model and engines, with which prompts.

    `named` is the model as the user names it, `command` the whole line, `options` what of it says
    how to check, `memory` what the files may take in GiB, 0 for what is made of what is free.
    `search`: for how many seconds edits of a file are run, None for as long as the check took.
    """

    files: tuple[UserFile, ...]
    model: Model
    backends: tuple[Backend, ...]
    prompts: tuple[str, ...]
    named: str
    command: str
    dump: bool = False
    memory: float = 0.0
    options: tuple[str, ...] = ()
    search: float | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the files are judged on."""
        return tuple(map(Column, (DUMP,) if self.dump else self.backends or (HF,)))


def begin(asked: Asked, reports: Path) -> RunFolder:
    """A new folder with the plan of a check."""
    now = datetime.now(UTC)
    run = create_run(reports, now)
    (run.path / "none").mkdir()
    run.write_plan(
        RunPlan(
            run=run.id,
            started=now.isoformat(timespec="seconds"),
            command=asked.command,
            models=(asked.model,),
            columns=asked.columns,
            cells=tuple(
                Cell(asked.model.id, one.id, USER_TRACE.name, file.name)
                for one in asked.columns
                for file in asked.files
            ),
            thresholds=Thresholds(),
            scenarios=str(run.path / "none"),
            precisions=tuple(Precision),
        )
    )
    run.begin()
    point_latest(run)
    return run


def gather(
    asked: Asked,
    run: RunFolder,
    limits: Limits,
    on_event: Callable[[Event], None],
    steps: Steps | None = None,
) -> Summary:
    """Run the files' functions where they belong; everything that was seen is in the folder.

    With `steps` the engines stay when they have run the files, for the search that these are.
    Raises what the search raised.
    """
    maker = _Maker(asked, run)
    session = Session(maker.staying(), steps) if steps is not None else None

    def hear(event: Event) -> None:
        if session is not None:
            session.hear(event)
        on_event(event)

    summary = run_jobs(
        maker.jobs(session),
        logs=run.path / "zygotes",
        jobs=os.cpu_count() or 1,
        limits=limits,
        on_event=hear,
    )
    if session is not None and session.error is not None:
        raise session.error
    if not summary.interrupted:
        run.finish()
    return summary


def room(checkpoint: Path) -> dict[str, int]:
    """What an engine must have room for: tokens of a prompt with its generation, and bytes of
    its cache for two of those.
    """
    config = usable.of_text(loose_json.mapping(checkpoint / "config.json"))
    longest = usable.positive(config, "max_position_embeddings", "n_positions") or LENGTH
    length = min(longest, LENGTH)
    two = 2 * length * usable.bytes_of_a_token(config)
    return {"length": length, "cache_bytes": max(CACHE_BYTES, two)}


class _Maker:
    def __init__(self, asked: Asked, run: RunFolder) -> None:
        self.asked = asked
        self.run = run
        self.cache = cache_folder()
        self.prompts = asked.prompts or PAIR

    def jobs(self, session: Session | None = None) -> list[Planned]:
        build, truth = self._name(BUILD.id), self._name(TRUTH.id)
        found = [
            self._planned(build, BUILD, self._build, load=patience(self.asked.model)),
            self._planned(truth, TRUTH, self._truth, needs=(build,)),
        ]
        for backend in self.asked.backends:
            for precision in Precision:
                name = self._name(gathered_in(backend.id, precision))
                make = self._column(Column(backend), precision, stays=session is not None)
                found.append(self._planned(name, Column(backend), make, needs=(truth,)))
        if session is None:
            return found
        stay = self.staying()
        return [
            replace(one, follow=partial(session.follow, one.id)) if one.id in stay else one
            for one in found
        ]

    def staying(self) -> set[str]:
        """The jobs whose engines a search uses."""
        engines = product(self.asked.backends, Precision)
        names = [TRUTH.id, *(gathered_in(backend.id, p) for backend, p in engines)]
        return {self._name(name) for name in names}

    def _name(self, folder: str) -> str:
        return f"{self.asked.model.id}:{folder}"

    def _planned(
        self,
        name: str,
        column: Column,
        make: Callable[[], Job | None],
        needs: Sequence[str] = (),
        load: float = 0.0,
    ) -> Planned:
        folder = self.run.group_folder(self.asked.model.id, name.partition(":")[2]).path
        return Planned(
            name, make, launch(column), needs=tuple(needs), folder=folder, load=load, tries=1
        )

    def _local(self) -> Path | None:
        """A local folder is taken as it lies."""
        [source, *others] = self.asked.model.sources
        return Path(source.file) if source.kind == "path" and not others else None

    def _build(self) -> Job | None:
        model = self.asked.model
        if self._local() or (model.architecture and locate(model, self.cache)):
            return None
        job = self._job(BUILD, f"{_ENGINES}.obtain", "hf", built=False)
        return replace(job, cases=())

    def _checkpoint(self) -> tuple[Path, str]:
        """The weights and their digest, "" for a folder that is taken as it lies."""
        built = self.run.group(self.asked.model.id, BUILD.id)
        if built is not None:
            return Path(built.identity["path"]), str(built.identity.get("digest", ""))
        if local := self._local():
            return local, ""
        found = locate(self.asked.model, self.cache)
        if found is None:
            raise ConformanceError("the checkpoint is gone from the cache", remedy="check again")
        return found.path, found.digest

    def _job(
        self, column: Column, engine: str, side: str, *, folder: str = "", built: bool = True
    ) -> Job:
        checkpoint, digest = self._checkpoint() if built else (self.cache, "")
        cases = tuple(
            case_of(file.name, file.path, file.function_for(side), self.prompts)
            for file in self.asked.files
            if file.function_for(side) in file.functions
        )
        return Job(
            engine=f"{engine}:open_engine",
            model=self.asked.model,
            column=column,
            checkpoint=checkpoint,
            folder=self.run.group_folder(self.asked.model.id, folder or column.id).path,
            scenarios=self.run.path / "none",
            cases=cases,
            digest=digest,
        )

    def _truth(self) -> Job:
        job = self._job(TRUTH, f"{_ENGINES}.hf", "hf")
        cases = PROBING.expand(0) + job.cases
        return replace(job, cases=cases, settings=self._memory(TRUTH))

    def _column(
        self, column: Column, precision: Precision, *, stays: bool
    ) -> Callable[[], Job | None]:
        def make() -> Job | None:
            folder = gathered_in(column.id, precision)
            job = self._job(column, f"{_ENGINES}.vllm", "vllm", folder=folder)
            cases = tuple(case for case in job.cases if self._has_truth(case))
            if not (cases or (stays and self._any_truth())):
                return None
            probe = self.run.group_folder(self.asked.model.id, TRUTH.id).cell(PROBED)
            must = expected(column.backend, precision=precision)
            settings = {**room(job.checkpoint), **self._memory(column)}
            return replace(
                job,
                cases=cases,
                precision=precision,
                probe=probe,
                expect=must,
                settings=settings,
            )

        return make

    def _has_truth(self, case: Case) -> bool:
        """Return whether there is anything to compare with."""
        outcome = self.run.outcome(self.asked.model.id, TRUTH.id, case.key)
        return outcome is not None and outcome.status is Status.OK

    def _any_truth(self) -> bool:
        cases = (case_of(file.name, file.path, "hf", ()) for file in self.asked.files)
        return any(map(self._has_truth, cases))

    def _memory(self, column: Column) -> dict[str, float]:
        """What a process may take: so many engines run at a time, of so many processes each."""
        engines = 1
        if column != TRUTH:
            engines = min(os.cpu_count() or 1, len(Precision) * len(self.asked.backends))
        share = 1 / (engines * column.pipeline * column.tensor)
        return {"memory_share": share, "memory": self.asked.memory * GIB * share}


def words(event: Event) -> str:
    """What there is to say while a check runs, "" for nothing."""
    match event:
        case GroupStarted():
            return f"{_who(event.id)}: loading"
        case GroupLoaded():
            return f"{_who(event.id)}: loaded in {event.seconds:.1f} s"
        case CellStarted() if event.case.startswith(f"{USER_TRACE.name}."):
            if "~" in event.case:
                return ""  # a version of a file, of which a search tries many
            return f"{_who(event.id)}: running {event.case.partition('.')[2]}"
        case WorkerDied():
            return f"{_who(event.id)}: {event.status.value}: {event.reason}"
    return ""


def _who(job: str) -> str:
    """A job as a user calls it."""
    folder = job.partition(":")[2]
    column, _, precision = folder.partition("+")
    known = {BUILD.id: "the model", TRUTH.id: "transformers"}
    return known.get(folder) or f"{column} in {precision or Precision.BF16}"

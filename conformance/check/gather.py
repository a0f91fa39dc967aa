"""The workers of a check: transformers first, then every engine in float32 and in bf16."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from conformance.builtin.probe import PROBING
from conformance.builtin.user_trace import case_of
from conformance.check.source import UserFile
from conformance.checkpoints import cache_folder, locate, patience
from conformance.errors import ConformanceError
from conformance.planning.jobs import expected, launch
from conformance.records import Backend, Cell, Column, Job, Model, Precision, Thresholds
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
from conformance.store import RunFolder, RunPlan, create_run

_ENGINES = "conformance.engines.user_trace"

HF = Backend("hf", "hf")
BUILD = Backend("build", "build", default=False)


@dataclass(frozen=True)
class Asked:
    """What a check was asked: which files, on which model and engines, with which prompts."""

    files: tuple[UserFile, ...]
    model: Model
    backends: tuple[Backend, ...]
    prompts: tuple[str, ...]
    command: str


def column(backend: Backend, precision: Precision) -> Backend:
    """The column of an engine in one precision: the plain name asks for the meaning."""
    meaning = precision is Precision.FLOAT32
    return backend if meaning else replace(backend, id=f"{backend.id}-bf16")


def gather(
    asked: Asked, reports: Path, limits: Limits, on_event: Callable[[Event], None]
) -> tuple[RunFolder, Summary]:
    """Run the file's functions where they belong; everything that was seen is in the folder."""
    now = datetime.now(UTC)
    run = create_run(reports, now)
    (run.path / "none").mkdir()
    columns = tuple(
        column(backend, precision) for backend in asked.backends for precision in Precision
    )
    run.write_plan(
        RunPlan(
            run=run.id,
            started=now.isoformat(timespec="seconds"),
            command=asked.command,
            models=(asked.model,),
            columns=tuple(map(Column, columns)),
            cells=tuple(
                Cell(asked.model.id, one.id, "check", file.name)
                for one in columns
                for file in asked.files
            ),
            thresholds=Thresholds(),
            scenarios=str(run.path / "none"),
        )
    )
    summary = run_jobs(
        _Maker(asked, run).jobs(),
        logs=run.path / "zygotes",
        jobs=os.cpu_count() or 1,
        limits=limits,
        on_event=on_event,
    )
    return run, summary


class _Maker:
    def __init__(self, asked: Asked, run: RunFolder) -> None:
        self.asked = asked
        self.run = run
        self.cache = cache_folder()
        self.prompts = asked.prompts or PAIR

    def jobs(self) -> list[Planned]:
        model = self.asked.model
        build, hf = f"{model.id}:{BUILD.id}", f"{model.id}:{HF.id}"
        found = [
            self._planned(build, BUILD, self._build, load=patience(model)),
            self._planned(hf, HF, self._hf, needs=(build,)),
        ]
        for backend in self.asked.backends:
            for precision in Precision:
                one = column(backend, precision)
                found.append(
                    self._planned(
                        f"{model.id}:{one.id}", one, self._column(one, precision), needs=(hf,)
                    )
                )
        return found

    def _planned(
        self,
        name: str,
        backend: Backend,
        make: Callable[[], Job | None],
        needs: Sequence[str] = (),
        load: float = 0.0,
    ) -> Planned:
        folder = self.run.group_folder(self.asked.model.id, backend.id).path
        return Planned(
            name, make, launch(Column(backend)), needs=tuple(needs), folder=folder, load=load
        )

    def _local(self) -> Path | None:
        """A local folder is taken as it lies."""
        [source, *others] = self.asked.model.sources
        return Path(source.file) if source.kind == "path" and not others else None

    def _build(self) -> Job | None:
        model = self.asked.model
        if self._local() or (model.architecture and locate(model, self.cache)):
            return None
        job = self._job(BUILD, f"{_ENGINES}.obtain", "hf", self.cache)
        return replace(job, cases=())

    def _checkpoint(self) -> Path:
        built = self.run.group(self.asked.model.id, BUILD.id)
        if built is not None:
            return Path(built.identity["path"])
        found = locate(self.asked.model, self.cache)
        folder = self._local() or (found.path if found else None)
        if folder is None:
            raise ConformanceError("the checkpoint is gone from the cache", remedy="check again")
        return folder

    def _job(self, backend: Backend, engine: str, side: str, checkpoint: Path) -> Job:
        cases = tuple(
            case_of(file.name, file.path, file.function_for(side), self.prompts)
            for file in self.asked.files
        )
        return Job(
            engine=f"{engine}:open_engine",
            model=self.asked.model,
            column=Column(backend),
            checkpoint=checkpoint,
            folder=self.run.group_folder(self.asked.model.id, backend.id).path,
            scenarios=self.run.path / "none",
            cases=cases,
        )

    def _hf(self) -> Job:
        job = self._job(HF, f"{_ENGINES}.hf", "hf", self._checkpoint())
        return replace(job, cases=PROBING.expand(0) + job.cases)

    def _column(self, backend: Backend, precision: Precision) -> Callable[[], Job]:
        def make() -> Job:
            job = self._job(backend, f"{_ENGINES}.vllm", "vllm", self._checkpoint())
            probe = self.run.group_folder(self.asked.model.id, HF.id).cell("probe.all")
            return replace(
                job, precision=precision, probe=probe, expect=expected(backend, precision=precision)
            )

        return make


def words(event: Event) -> str:
    """What there is to say while a check runs, "" for nothing."""
    match event:
        case GroupStarted():
            return f"{event.id}: loading"
        case GroupLoaded():
            return f"{event.id}: loaded in {event.seconds:.1f} s"
        case CellStarted() if event.case.startswith("check."):
            return f"{event.id}: running {event.case.removeprefix('check.')}"
        case WorkerDied():
            return f"{event.id}: {event.status.value}: {event.reason}"
    return ""

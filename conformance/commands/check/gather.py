"""Run a check's workers: transformers first, then every engine in float32 and in bf16."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from conformance.runner import scheduling as runner
from conformance.runner.planning.jobs import BUILD, REFERENCE, expected, planned
from conformance.runner.planning.named import DUMP, HF, local_folder
from conformance.runner.scheduling.open_engines import Session, Steps
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec import loose_json
from conformance.spec.builtin.probe import PROBED, PROBING
from conformance.spec.builtin.user_trace import USER_TRACE, case_of
from conformance.spec.checkpoints import cache_folder, locate, patience
from conformance.spec.inputs import usable
from conformance.spec.inputs.user_file import UserFile
from conformance.spec.records import Backend, Column, Job, Model, Precision, Status
from conformance.spec.scenario import PAIR

#: The longest sequence, in tokens, that an engine is opened for.
LENGTH = 2048

#: The smallest KV cache of an engine, in bytes.
CACHE_BYTES = 64 << 20

#: The column of transformers' reference and baseline runs, with which every engine is compared.
REFERENCE_COLUMN = Column(Backend(REFERENCE.id, HF.engine, default=False))


@dataclass(frozen=True)
class CheckRequest:
    """The request for a check: files, model, columns and prompts.

    `named` is the model as the user names it. `options` are the command's options that affect the
    result. `memory` is the limit for the files in GiB; 0 derives it from the free memory. `search`
    is the time for running edits of a file in seconds; None means as long as the check took.
    """

    files: tuple[UserFile, ...]
    model: Model
    backends: tuple[Backend, ...]
    prompts: tuple[str, ...]
    named: str
    options: tuple[str, ...] = ()
    memory: float = 0.0
    search: float | None = None

    @property
    def engines(self) -> tuple[Backend, ...]:
        """The columns on which the files run, except transformers."""
        return tuple(one for one in self.backends if one not in (HF, DUMP))

    @property
    def dump(self) -> bool:
        """Whether values come from a dump of another tool."""
        return DUMP in self.backends


def gather(
    request: CheckRequest,
    run: RunFolder,
    limits: runner.TimeLimits,
    on_event: Callable[[runner.Event], None],
    steps: Steps | None = None,
) -> runner.RunSummary:
    """Run the files' functions on their engines, which store the observations in the run folder.

    `steps` are those of a search: the engines stay loaded for it after they have run the files.
    Raises what the search raised.
    """
    jobs = _Maker(request, run, searched=steps is not None).jobs()
    session = Session({job.id for job in jobs[1:]}, steps) if steps is not None else None
    if session is not None:
        jobs[1:] = [replace(one, follow=partial(session.follow, one.id)) for one in jobs[1:]]

    def hear(event: runner.Event) -> None:
        if session is not None:
            session.hear(event)
        on_event(event)

    logs, cores = run.path / "zygotes", os.cpu_count() or 1
    summary = runner.run(jobs, logs=logs, jobs=cores, limits=limits, on_event=hear)
    if session is not None and session.error is not None:
        raise session.error
    if not summary.interrupted:
        run.finish()
    return summary


def room(checkpoint: Path) -> dict[str, int]:
    """Return an engine's longest sequence in tokens, and its KV cache for two of them in bytes."""
    config = usable.of_text(loose_json.mapping(checkpoint / "config.json"))
    longest = usable.positive(config, "max_position_embeddings", "n_positions") or LENGTH
    length = min(longest, LENGTH)
    two = 2 * length * usable.bytes_of_a_token(config)
    return {"length": length, "cache_bytes": max(CACHE_BYTES, two)}


def identity(run: RunFolder, model: str) -> Mapping[str, Any]:
    """Return transformers' description of the model: its number of `layers`, its `layer_list`."""
    group = run.group(model, REFERENCE.id)
    return group.identity if group else {}


@dataclass
class _Maker:
    """Makes the jobs of a check, each only when it is due: the checkpoint may not exist earlier."""

    request: CheckRequest
    run: RunFolder
    searched: bool

    def jobs(self) -> list[runner.Planned]:
        """Return the job that obtains the model, then transformers', then the engines'."""
        job = partial(planned, self.run, self.request.model.id, tries=1)
        build = job(BUILD.id, BUILD, self._build, load=patience(self.request.model))
        reference = job(REFERENCE.id, REFERENCE_COLUMN, self._reference_job, needs=(build.id,))
        engines = [
            job(
                gathered_in(backend.id, precision),
                Column(backend),
                partial(self._engine, Column(backend), precision),
                needs_cells=((reference.id, PROBED),),
            )
            for backend, precision in product(self.request.engines, Precision)
        ]
        return [build, reference, *engines]

    def _weights(self) -> tuple[Path, str] | None:
        """Return the weights and their digest, "" for a local folder, which is used as it is. None
        if the weights have to be obtained.
        """
        model = self.request.model
        if folder := local_folder(model):
            return folder, ""
        if built := self.run.group(model.id, BUILD.id):
            return Path(built.identity["path"]), str(built.identity.get("digest", ""))
        found = model.architecture and locate(model, cache_folder())
        return (found.path, found.digest) if found else None

    def _build(self) -> Job | None:
        return None if self._weights() else replace(self._job(BUILD, "obtain"), cases=())

    def _job(self, column: Column, engine: str, precision: Precision = Precision.BF16) -> Job:
        """Return a job of an engine, which runs the files' functions for it."""
        request = self.request
        checkpoint, digest = self._weights() or (cache_folder(), "")
        side = "vllm" if engine == "vllm" else "hf"
        folder = gathered_in(column.id, precision)
        return Job(
            engine=f"conformance.engines.user_trace.{engine}:open_engine",
            model=request.model,
            column=column,
            checkpoint=checkpoint,
            folder=self.run.group_folder(request.model.id, folder).path,
            scenarios=self.run.path / "files",  # folders alone: no scenario is found there
            cases=tuple(
                case_of(file.name, file.path, file.function_for(side), request.prompts or PAIR)
                for file in request.files
                if file.function_for(side) in file.functions
            ),
            digest=digest,
            precision=precision,
        )

    def _reference_job(self) -> Job:
        job, settings = self._job(REFERENCE_COLUMN, "hf"), self._memory(REFERENCE_COLUMN)
        return replace(job, cases=PROBING.expand(0) + job.cases, settings=settings)

    def _engine(self, column: Column, precision: Precision) -> Job | None:
        """Return the job for the files that have not failed on transformers, which may still run
        them. None if neither such a file nor a search runs.
        """
        model, job = self.request.model.id, self._job(column, "vllm", precision)
        ended = {
            one.key: self.run.outcome(model, REFERENCE.id, one.key) for one in self.request.files
        }
        usable = {key for key, one in ended.items() if one is None or one.status is Status.OK}
        cases = tuple(case for case in job.cases if case.key in usable)
        if not (cases or (self.searched and usable)):
            return None
        return replace(
            job,
            cases=cases,
            settings={**room(job.checkpoint), **self._memory(column)},
            probe=self.run.group_folder(model, REFERENCE.id).cell(PROBED),
            expect=expected(column.backend, precision=precision),
        )

    def _memory(self, column: Column) -> dict[str, float]:
        """Return a process's share of the memory, for all engines that can run at the same time."""
        engines = min(os.cpu_count() or 1, 1 + len(Precision) * len(self.request.engines))
        share = 1 / (engines * column.pipeline * column.tensor)
        return {"memory_share": share, "memory": self.request.memory * 2**30 * share}


def describe_event(event: runner.Event) -> str:
    """Return the progress message for an event, "" for none."""
    match event:
        case runner.GroupStarted():
            words = "loading"
        case runner.GroupLoaded():
            words = f"loaded in {event.seconds:.1f} s"
        case runner.CellStarted():
            scenario, _, name = event.case.partition(".")
            if scenario != USER_TRACE.name or "~" in name:  # a search's versions of a file are many
                return ""
            words = f"running {name}"
        case runner.WorkerDied():
            words = f"{event.status.value}: {event.reason}"
        case _:
            return ""
    column, _, precision = event.id.partition(":")[2].partition("+")
    known = {BUILD.id: "the model", REFERENCE.id: "transformers"}
    return f"{known.get(column) or f'{column} in {precision or Precision.BF16}'}: {words}"

"""The parent's loop: begins groups that are ready, closes ended ones, and cleans up.

`WorkerPool` is its interface to the machines that run the groups.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from conformance.errors import ConformanceError, ExitCode
from conformance.runner.scheduling.events import Event, GroupFinished
from conformance.runner.scheduling.group import GroupRun
from conformance.runner.scheduling.planned import Done, Planned, RunSummary, check
from conformance.runner.store import GroupFolder, ObservationCache
from conformance.spec.records import Group, Status


class WorkerPool(Protocol):
    """What runs groups: processes of this machine (`local.py`), or the machines of a cluster.

    `work` returns each group that was begun exactly once, when it has ended and each of its cells
    has an outcome.
    """

    @property
    def peak_mib(self) -> float:
        """The peak memory of all its processes together, or 0 if unknown."""
        ...

    def has_room_for(self, planned: Planned) -> bool: ...

    def reuse(self, group: GroupRun, cache: ObservationCache | None) -> None:
        """Let the group reuse cells finished on hardware of a kind on which it may run.

        Raises ConformanceError as `GroupRun.reuse` does.
        """
        ...

    def prepare(self, waiting: Sequence[Planned]) -> None:
        """Pre-warm workers for these jobs, which will begin in this order."""
        ...

    def begin(self, group: GroupRun) -> None: ...

    def work(self) -> list[GroupRun]:
        """Make progress for a moment; return the groups that ended."""
        ...

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        """Release everything that these waiting and running jobs do not need."""
        ...

    def end(self) -> set[int]:
        """End everything, after reading its events; return processes that cannot be ended."""
        ...


class Runner:
    """One run in progress; `run` is called once."""

    def __init__(
        self,
        planned: Sequence[Planned],
        *,
        workers: WorkerPool,
        cache: ObservationCache | None,
        on_event: Callable[[Event], None],
    ) -> None:
        check(planned)
        self._waiting = list(planned)
        self._workers = workers
        self._cache = cache
        self._tell = on_event
        self._begun: list[GroupRun] = []
        self._running: dict[str, GroupRun] = {}
        self._done: dict[str, Done] = {}
        self._resumed = 0

    def run(self) -> RunSummary:
        begun = time.monotonic()
        interrupted = False
        try:
            with _told_to_end_as_by_ctrl_c():
                while self._waiting or self._running:
                    self._begin_ready()
                    for group in self._workers.work():
                        self._close(group)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with _uninterrupted():
                survivors = self._workers.end()
        if survivors:
            raise ConformanceError(
                f"processes of the run cannot be ended: {sorted(survivors)}", code=ExitCode.HARNESS
            )
        return RunSummary(
            self._done,
            time.monotonic() - begun,
            self._workers.peak_mib,
            interrupted,
            # All groups, including ones still closing when the run was interrupted.
            sum(group.finished_here for group in self._begun),
            self._resumed,
        )

    def _begin_ready(self) -> None:
        while ready := [
            planned
            for planned in self._waiting
            if self._workers.has_room_for(planned) and self._ready(planned)
        ]:
            planned = min(ready, key=self._would_wait_for_kernels)  # the first of equals
            self._waiting.remove(planned)
            self._begin(planned)
        self._workers.prepare(self._waiting)

    def _would_wait_for_kernels(self, planned: Planned) -> bool:
        """Return whether a similar engine of the same model is still loading.

        Engines may compile kernels while they load. Of two that need the same kernel, one would
        wait for the other's lock with its core idle.
        """
        return planned.folder is not None and any(
            group.loading
            and group.planned.launch.preload == planned.launch.preload
            and group.folder.path.parent == planned.folder.parent
            for group in self._running.values()
        )

    def _ready(self, planned: Planned) -> bool:
        """Return whether everything this job waits for has ended, or progressed far enough."""
        jobs = (*((job, "") for job in (*planned.after, *planned.needs)), *planned.needs_cells)
        return all(job in self._done or self._has(job, case) for job, case in jobs)

    def _has(self, job: str, case: str) -> bool:
        """Return whether a running job has run its initial cases or, if named, this one with
        success. A remote job's outcomes are synced into its group's folder, too.
        """
        group = self._running.get(job)
        if group is None or not case:
            return group is not None and group.rests
        outcome = group.folder.outcome(case)
        return outcome is not None and outcome.status is Status.OK

    def _begin(self, planned: Planned) -> None:
        why = self._broken(planned)
        try:
            job = planned.make()
        except Exception as error:  # noqa: BLE001 - the caller's code; concerns one job only
            self._unmade(planned, why or f"{type(error).__name__}: {error}")
            return
        if job is None:
            self._finish(planned, Done(ok=not why, reason=why))
            return
        group = GroupRun(planned, job, self._tell)
        self._begun.append(group)
        try:
            self._workers.reuse(group, self._cache if planned.cached else None)
        except ConformanceError as error:
            why = why or str(error)
        self._resumed += group.reused
        if job.cases and group.nothing_waiting:
            self._close(group)
        elif why:
            # It lacks a checkpoint or the reference, which is not the engine's error.
            group.refuse(why, harness=True)
            self._close(group)
        else:
            self._running[planned.id] = group
            self._workers.begin(group)

    def _unmade(self, planned: Planned, reason: str) -> None:
        if planned.folder is not None:
            names = planned.folder.parent.name, planned.folder.name
            GroupFolder(planned.folder).write_group(
                Group(*names, status=Status.ERROR, reason=reason)
            )
        self._finish(planned, Done(ok=False, reason=reason))

    def _broken(self, planned: Planned) -> str:
        """Return the errors of the failed jobs that this one needs, or ""."""
        needs = (*planned.needs, *(job for job, _ in planned.needs_cells))
        ended = {job: self._done[job] for job in needs if job in self._done}
        return "; ".join(
            f"{job} failed: {done.reason}" for job, done in ended.items() if not done.ok
        )

    def _close(self, group: GroupRun) -> None:
        planned = group.planned
        record = group.close()
        ok = record.status is Status.OK
        self._running.pop(planned.id, None)
        if self._cache is not None and planned.cached and ok:
            group.keep(self._cache)
        self._finish(planned, Done(ok, record.reason, record), reused=record.reused)

    def _finish(self, planned: Planned, done: Done, *, reused: bool = False) -> None:
        self._done[planned.id] = done
        self._tell(GroupFinished(planned.id, done.ok, done.reason, reused))
        running = (group.planned for group in self._running.values())
        self._workers.keep_only([*self._waiting, *running])


#: Signals that ask a run to end: from Ctrl-C, `timeout` or a scheduler, or a closed terminal.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _handled(numbers: Sequence[signal.Signals], by: Callable[..., object] | int) -> Iterator[None]:
    """Handle these signals this way inside the with block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, by) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told_to_end_as_by_ctrl_c() -> AbstractContextManager[None]:
    """Handle other ending signals like Ctrl-C: keep finished cells, and leave no process behind.

    A signal that is ignored from outside (nohup, a shell's background job) stays ignored, and one
    that the command already handles is left to it.
    """
    heard = [number for number in _ENDING[1:] if signal.getsignal(number) is signal.SIG_DFL]
    return _handled(heard, signal.default_int_handler)


def _uninterrupted() -> AbstractContextManager[None]:
    """Ignore a second Ctrl-C, which would leave processes behind."""
    return _handled(_ENDING, signal.SIG_IGN)

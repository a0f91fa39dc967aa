"""The parent's loop: start what is ready, hear what is said, end what is overdue."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from conformance.errors import ConformanceError, ExitCode
from conformance.processes import sessions
from conformance.records import Group, Status
from conformance.runner.events import Event, GroupFinished
from conformance.runner.group import GroupRun
from conformance.runner.planned import Done, Planned, Summary, check
from conformance.runner.pool import Pool
from conformance.runner.timeouts import Limits
from conformance.store import GroupFolder, ObservationCache

#: How long the loop may wait for a message before it looks at the events' files.
_LOOK_EVERY = 0.05

#: Memory is measured this often, in seconds, and less often where that costs more than
#: this share of the time: an engine's pages are many.
_WEIGH_EVERY = (1.0, 5.0)
_WEIGH_SHARE = 0.02

#: How long a zygote may take to report the end of a worker that was killed, in seconds.
_REPORTED_WITHIN = 15.0


class Runner:
    """One run in progress; `run` is called once."""

    def __init__(
        self,
        planned: Sequence[Planned],
        *,
        logs: Path,
        jobs: int,
        limits: Limits,
        device: str,
        cache: ObservationCache | None,
        on_event: Callable[[Event], None],
        places: Mapping[str, str],
    ) -> None:
        check(planned)
        self._waiting = list(planned)
        self._jobs = max(1, jobs)
        self._limits = limits
        self._device = device
        self._cache = cache
        self._tell = on_event
        self._mark = sessions.new_mark()
        self._begun: list[GroupRun] = []
        self._running: dict[str, GroupRun] = {}
        self._done: dict[str, Done] = {}
        self._pool = Pool(logs, mark=self._mark, imports=limits.imports, places=places)
        self._peak = 0.0
        self._weigh_at = 0.0
        self._resumed = 0

    def run(self) -> Summary:
        begun = time.monotonic()
        interrupted = False
        try:
            with _told_to_end_as_by_ctrl_c():
                while self._waiting or self._running:
                    self._begin_ready()
                    self._ask_for_workers()
                    self._hear()
                    self._replace_lost()
                    for group in list(self._running.values()):
                        group.watch(self._limits)
                    self._weigh()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with _uninterrupted():
                survivors = self._end()
        if survivors:
            raise ConformanceError(
                f"processes of the run cannot be ended: {sorted(survivors)}", code=ExitCode.HARNESS
            )
        return Summary(
            self._done,
            time.monotonic() - begun,
            self._peak,
            interrupted,
            # Of every group, wherever in its end the run was interrupted.
            sum(group.finished_here for group in self._begun),
            self._resumed,
        )

    # --- jobs ---------------------------------------------------------------

    def _begin_ready(self) -> None:
        for planned in list(self._waiting):
            if len(self._running) >= self._jobs:
                break
            if all(name in self._done for name in (*planned.after, *planned.needs)):
                self._waiting.remove(planned)
                self._begin(planned)
        # Import ahead what is wanted next: a worker's slot should not wait for imports.
        for planned in self._waiting:
            self._pool.warm(planned.launch, most=max(2, self._jobs))

    def _begin(self, planned: Planned) -> None:
        why = self._broken(planned)
        try:
            job = planned.make()
        except Exception as error:  # noqa: BLE001 - the caller's code, and one job's concern
            self._unmade(planned, why or f"{type(error).__name__}: {error}")
            return
        if job is None:
            self._finish(planned, Done(ok=not why, reason=why))
            return
        group = GroupRun(planned, job, self._tell)
        self._begun.append(group)
        try:
            group.reuse(self._device, self._cache if planned.cached else None)
        except ConformanceError as error:
            why = why or str(error)
        self._resumed += group.reused
        if job.cases and group.nothing_waiting:
            self._close(group)
        elif why:
            # What it needs is a checkpoint or the reference: no engine has anything to do with it.
            group.refuse(why, harness=True)
            self._close(group)
        else:
            self._running[planned.id] = group

    def _unmade(self, planned: Planned, reason: str) -> None:
        if planned.folder is not None:
            names = planned.folder.parent.name, planned.folder.name
            GroupFolder(planned.folder).write_group(
                Group(*names, status=Status.ERROR, reason=reason)
            )
        self._finish(planned, Done(ok=False, reason=reason))

    def _broken(self, planned: Planned) -> str:
        """What went wrong with the jobs this one cannot do without, "" when nothing did."""
        return "; ".join(
            f"{name} failed: {self._done[name].reason}"
            for name in planned.needs
            if not self._done[name].ok
        )

    def _close(self, group: GroupRun) -> None:
        planned = group.planned
        record = group.close()
        self._running.pop(planned.id, None)
        if self._cache is not None and planned.cached and record.status is Status.OK:
            group.keep(self._cache)
        ok = record.status is Status.OK
        self._finish(planned, Done(ok, record.reason, record), reused=record.reused)

    def _finish(self, planned: Planned, done: Done, *, reused: bool = False) -> None:
        self._done[planned.id] = done
        self._tell(GroupFinished(planned.id, done.ok, done.reason, reused))
        wanted = {planned.launch for planned in self._waiting}
        wanted |= {group.planned.launch for group in self._running.values()}
        self._pool.keep_only(wanted)

    # --- workers --------------------------------------------------------------

    def _ask_for_workers(self) -> None:
        for name, group in list(self._running.items()):
            launch = group.planned.launch
            if why := self._pool.unusable.get(launch):
                group.refuse(why.words, harness=why.slow)
                self._close(group)
            elif group.attempt is None and self._pool.ready(launch):
                self._pool.ask(launch, name, group.next_job())
            else:
                self._pool.start(launch)

    def _hear(self) -> None:
        for message in self._pool.hear(_LOOK_EVERY):
            group = self._running.get(message["id"])
            if group is None or group.attempt is None:
                continue
            if message["is"] == "started":
                group.attempt.started(message["pid"])
            else:
                self._ended(group, message["status"])

    def _replace_lost(self) -> None:
        """The workers of a zygote that is gone go with it; their groups get others."""
        since = time.monotonic() - _REPORTED_WITHIN
        running = [group for group in self._running.values() if group.attempt is not None]
        deaf = {
            group.planned.launch
            for group in running
            if group.attempt is not None and group.attempt.killed < since
        }
        lost = self._pool.take_lost(deaf)
        for group in running:
            if group.attempt is not None and group.planned.launch in lost:
                group.attempt.words, group.attempt.outside = lost[group.planned.launch], True
                if group.attempt.pid:
                    sessions.kill(group.attempt.pid)
                self._ended(group, -signal.SIGKILL)

    def _ended(self, group: GroupRun, status: int) -> None:
        if not group.ended(status):
            self._close(group)

    # --- the whole ----------------------------------------------------------

    def _weigh(self) -> None:
        now = time.monotonic()
        if now < self._weigh_at:
            return
        everyone = sessions.descendants(os.getpid()) | {os.getpid()}
        self._peak = max(self._peak, sessions.memory_mib(everyone))
        soonest, latest = _WEIGH_EVERY
        cost = time.monotonic() - now
        self._weigh_at = now + min(latest, max(soonest, cost / _WEIGH_SHARE))

    def _end(self) -> set[int]:
        for group in self._running.values():
            if group.attempt is not None and group.attempt.pid:
                sessions.kill(group.attempt.pid)
            group.hear_out()
        self._pool.end()
        return sessions.kill_marked(self._mark)


#: What asks a run to end: Ctrl-C, a `timeout` or a scheduler, a terminal that is closed.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _handled(numbers: Sequence[signal.Signals], by: Callable[..., object] | int) -> Iterator[None]:
    """Have these signals handled so. Only the main thread may ask for that."""
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
    """What is finished is kept, and nobody is left behind, however a run is told to end.

    A signal that is ignored from outside (nohup, a shell's background job) stays ignored, and one
    that the command hears already is its own.
    """
    heard = [number for number in _ENDING[1:] if signal.getsignal(number) is signal.SIG_DFL]
    return _handled(heard, signal.default_int_handler)


def _uninterrupted() -> AbstractContextManager[None]:
    """A second Ctrl-C must not leave processes behind."""
    return _handled(_ENDING, signal.SIG_IGN)

"""The parent's loop: start what is ready, hear what is said, end what is overdue."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance import sessions
from conformance.errors import ConformanceError, ExitCode
from conformance.records import Group, Status
from conformance.runner import zygotes
from conformance.runner.events import Event, GroupFinished
from conformance.runner.group import GroupRun
from conformance.runner.planned import Done, Launch, Limits, Planned, Summary, check
from conformance.runner.zygotes import Zygote
from conformance.store import GroupFolder, ObservationCache

#: How long the loop may wait for a message before it looks at the events' files.
_LOOK_EVERY = 0.05

_WEIGH_EVERY = 1.0

#: A zygote that served and then ended is started anew, this often.
_ZYGOTE_STARTS = 3


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
    ) -> None:
        check(planned)
        self._waiting = list(planned)
        self._logs = logs
        self._jobs = max(1, jobs)
        self._limits = limits
        self._device = device
        self._cache = cache
        self._tell = on_event
        self._mark = uuid.uuid4().hex
        self._running: dict[str, GroupRun] = {}
        self._done: dict[str, Done] = {}
        self._zygotes: dict[Launch, Zygote] = {}
        self._starts: dict[Launch, int] = {}
        self._unusable: dict[Launch, str] = {}
        self._asked: set[str] = set()
        self._peak = 0.0
        self._weighed = 0.0
        self._finished = 0
        self._resumed = 0

    def run(self) -> Summary:
        begun = time.monotonic()
        interrupted = False
        try:
            while self._waiting or self._running:
                self._begin_ready()
                self._serve_zygotes()
                self._hear()
                for group in list(self._running.values()):
                    group.watch(self._limits)
                self._weigh()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with _uninterrupted():
                left = self._end()
        if left:
            raise ConformanceError(
                f"processes of the run cannot be ended: {sorted(left)}", code=ExitCode.HARNESS
            )
        return Summary(
            self._done,
            time.monotonic() - begun,
            self._peak,
            interrupted,
            self._finished,
            self._resumed,
        )

    # --- jobs ---------------------------------------------------------------

    def _begin_ready(self) -> None:
        for one in list(self._waiting):
            if len(self._running) >= self._jobs:
                break
            if all(name in self._done for name in (*one.after, *one.needs)):
                self._waiting.remove(one)
                self._begin(one)
        self._warm()

    def _warm(self) -> None:
        """Import ahead what is wanted next: a worker's slot should not wait for imports."""
        for one in self._waiting:
            if len(self._zygotes) >= max(2, self._jobs):
                return
            if self._starts.get(one.launch, 0) == 0:
                self._zygote(one.launch)

    def _begin(self, one: Planned) -> None:
        why = self._broken(one)
        try:
            job = one.make()
        except Exception as error:
            self._unmade(one, why or f"{type(error).__name__}: {error}")
            return
        if job is None:
            self._finish(one, Done(ok=not why, reason=why))
            return
        group = GroupRun(one, job, self._tell)
        try:
            group.reuse(self._device, self._cache if one.cached else None)
        except ConformanceError as error:
            why = why or str(error)
        self._resumed += group.reused
        if job.cases and group.nothing_left:
            self._close(group)
        elif why:
            group.refuse(why)
            self._close(group)
        else:
            self._running[one.id] = group
            self._zygote(one.launch)

    def _unmade(self, one: Planned, reason: str) -> None:
        if one.folder is not None:
            names = one.folder.parent.name, one.folder.name
            GroupFolder(one.folder).write_group(Group(*names, status=Status.ERROR, reason=reason))
        self._finish(one, Done(ok=False, reason=reason))

    def _broken(self, one: Planned) -> str:
        """What went wrong with the jobs this one cannot do without, "" when nothing did."""
        return "; ".join(
            f"{name} failed: {self._done[name].reason}"
            for name in one.needs
            if not self._done[name].ok
        )

    def _close(self, group: GroupRun) -> None:
        one = group.planned
        self._running.pop(one.id, None)
        self._asked.discard(one.id)
        record = group.close()
        self._finished += group.finished_here
        if self._cache is not None and one.cached and record.status is Status.OK:
            group.keep(self._cache)
        ok = record.status is Status.OK
        self._finish(one, Done(ok, record.reason, record), reused=record.reused)

    def _finish(self, one: Planned, done: Done, *, reused: bool = False) -> None:
        self._done[one.id] = done
        self._tell(GroupFinished(one.id, done.ok, done.reason, reused))
        wanted = {other.launch for other in self._waiting}
        wanted |= {group.planned.launch for group in self._running.values()}
        for launch in set(self._zygotes) - wanted:
            self._zygotes.pop(launch).end()

    # --- zygotes and workers ------------------------------------------------

    def _zygote(self, launch: Launch) -> None:
        if launch in self._zygotes:
            return
        if launch in self._unusable:
            self._refuse_all(launch, self._unusable[launch])
            return
        self._starts[launch] = self._starts.get(launch, 0) + 1
        number = len(self._starts)
        log = self._logs / f"zygote-{number}-{launch.preload or 'plain'}.txt"
        try:
            self._zygotes[launch] = zygotes.start(launch, log=log, mark=self._mark)
        except OSError as error:
            self._refuse_all(launch, f"{launch.python} cannot be started: {error}")

    def _serve_zygotes(self) -> None:
        for launch, zygote in list(self._zygotes.items()):
            if zygote.overdue(self._limits.imports):
                zygote.words = f"{launch.preload} took more than {self._limits.imports:g} s"
            if zygote.words:
                self._lost(launch, zygote)
        for name, group in list(self._running.items()):
            asked = self._zygotes.get(group.planned.launch)
            if name not in self._asked and asked is not None and asked.ready:
                self._asked.add(name)
                asked.ask(name, group.next_job())

    def _lost(self, launch: Launch, zygote: Zygote) -> None:
        """A zygote is gone: its workers with it. Those who had one get another."""
        served = zygote.ready
        del self._zygotes[launch]
        zygote.end()
        for name, group in list(self._running.items()):
            if group.planned.launch == launch and name in self._asked:
                if group.attempt is not None and group.attempt.pid:
                    group.attempt.words = zygote.words
                    sessions.kill(group.attempt.pid)
                self._ended(name, -signal.SIGKILL)
        if served and self._starts[launch] < _ZYGOTE_STARTS:
            if any(group.planned.launch == launch for group in self._running.values()):
                self._zygote(launch)
        else:
            self._refuse_all(launch, f"the engine cannot be imported: {zygote.words}")

    def _refuse_all(self, launch: Launch, reason: str) -> None:
        self._unusable[launch] = reason
        for group in list(self._running.values()):
            if group.planned.launch == launch:
                group.refuse(reason)
                self._close(group)

    def _hear(self) -> None:
        with selectors.DefaultSelector() as selector:
            if not self._zygotes:
                return
            for launch, one in self._zygotes.items():
                selector.register(one.socket, selectors.EVENT_READ, launch)
            for key, _ in selector.select(_LOOK_EVERY):
                zygote = self._zygotes.get(key.data)
                for message in zygote.hear() if zygote is not None else ():
                    group = self._running.get(message["id"])
                    if message["is"] == "started" and group is not None and group.attempt:
                        group.attempt.started(message["pid"])
                    elif message["is"] == "exited":
                        self._ended(message["id"], message["status"])

    def _ended(self, name: str, status: int) -> None:
        group = self._running.get(name)
        if group is None:
            return
        self._asked.discard(name)
        if not group.ended(status, self._limits):
            self._close(group)

    # --- the whole ----------------------------------------------------------

    def _weigh(self) -> None:
        now = time.monotonic()
        if now - self._weighed >= _WEIGH_EVERY:
            self._weighed = now
            everyone = sessions.descendants(os.getpid()) | {os.getpid()}
            self._peak = max(self._peak, sessions.memory_mib(everyone))

    def _end(self) -> set[int]:
        for group in self._running.values():
            if group.attempt is not None and group.attempt.pid:
                sessions.kill(group.attempt.pid)
        for zygote in self._zygotes.values():
            zygote.end()
        return sessions.kill_marked(self._mark)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not leave processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

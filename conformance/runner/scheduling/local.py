"""Groups on this machine: workers forked by warm zygotes, watched, and killed when overdue."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.runner.processes import sessions
from conformance.runner.scheduling.group import GroupRun
from conformance.runner.scheduling.planned import Planned
from conformance.runner.scheduling.time_limits import TimeLimits
from conformance.runner.scheduling.zygotes import ZygotePool
from conformance.runner.store import ObservationCache

#: Seconds to wait for a message before reading the events files again.
_LOOK_EVERY = 0.05

#: Seconds between memory measurements, at least and at most. An engine has many pages, so measuring
#: may take no more than this share of the time.
_WEIGH_EVERY = (2.0, 20.0)
_WEIGH_SHARE = 0.005

#: Seconds that a zygote has to report the end of a killed worker.
_REPORTED_WITHIN = 15.0


class Local:
    """Runs at most `jobs` groups at a time, one worker each; `device` names the hardware."""

    def __init__(
        self, logs: Path, *, jobs: int, limits: TimeLimits, device: str, places: Mapping[str, str]
    ) -> None:
        self.peak_mib = 0.0
        self._jobs = max(1, jobs)
        self._limits = limits
        self._device = device
        self._mark = sessions.new_mark()
        self._zygotes = ZygotePool(logs, mark=self._mark, imports=limits.imports, places=places)
        self.running: dict[str, GroupRun] = {}
        self._ended: list[GroupRun] = []
        self._weigh_at = 0.0

    def has_room_for(self, planned: Planned) -> bool:
        """Return whether a worker could start now. A job whose zygote still imports begins later,
        so that it is made from what is known then.
        """
        active = sum(not group.idle for group in self.running.values())
        return active < self._jobs and self._zygotes.ready(planned.launch) is not False

    def reuse(self, group: GroupRun, cache: ObservationCache | None) -> None:
        group.reuse((self._device,), cache)

    def prepare(self, waiting: Sequence[Planned]) -> None:
        """Import what comes next in advance, so that no worker has to wait for imports."""
        for planned in waiting:
            self._zygotes.warm(planned.launch, most=max(2, self._jobs))

    def begin(self, group: GroupRun) -> None:
        self.running[group.planned.id] = group

    def work(self) -> list[GroupRun]:
        self._ask_for_workers()
        self._hear()
        self._replace_lost()
        for group in self.running.values():
            group.watch(self._limits)
        self._weigh()
        ended, self._ended = self._ended, []
        return ended

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        self._zygotes.keep_only({planned.launch for planned in wanted})

    def end(self) -> set[int]:
        for group in self.running.values():
            if group.attempt is not None and group.attempt.pid:
                sessions.kill(group.attempt.pid)
            group.pass_on()
        self._zygotes.end()
        return sessions.kill_marked(self._mark)

    def _ask_for_workers(self) -> None:
        for name, group in list(self.running.items()):
            launch = group.planned.launch
            if why := self._zygotes.unusable.get(launch):
                group.refuse(why.words, harness=why.slow)
                self._has_ended(group)
            elif group.attempt is None and self._zygotes.ready(launch):
                self._zygotes.ask(launch, name, group.next_job())
            else:
                self._zygotes.start(launch)

    def _hear(self) -> None:
        for message in self._zygotes.hear(_LOOK_EVERY):
            group = self.running.get(message["id"])
            if group is None or group.attempt is None:
                continue
            if message["is"] == "started":
                group.attempt.pid = message["pid"]
                group.attempt.enter("load")
            else:
                self._worker_ended(group, message["status"])

    def _replace_lost(self) -> None:
        """Replace the workers of a zygote that is gone, which end with it."""
        since = time.monotonic() - _REPORTED_WITHIN
        running = [(group, group.attempt) for group in self.running.values() if group.attempt]
        deaf = {group.planned.launch for group, attempt in running if attempt.killed < since}
        lost = self._zygotes.take_lost(deaf)
        for group, attempt in running:
            if group.planned.launch in lost:
                attempt.words, attempt.outside = lost[group.planned.launch], True
                if attempt.pid:
                    sessions.kill(attempt.pid)
                self._worker_ended(group, -signal.SIGKILL)

    def _worker_ended(self, group: GroupRun, status: int) -> None:
        if not group.ended(status):
            self._has_ended(group)

    def _has_ended(self, group: GroupRun) -> None:
        del self.running[group.planned.id]
        self._ended.append(group)

    def _weigh(self) -> None:
        now = time.monotonic()
        if now < self._weigh_at:
            return
        everyone = sessions.descendants(os.getpid()) | {os.getpid()}
        self.peak_mib = max(self.peak_mib, sessions.memory_mib(everyone))
        soonest, latest = _WEIGH_EVERY
        cost = time.monotonic() - now
        self._weigh_at = now + min(latest, max(soonest, cost / _WEIGH_SHARE))

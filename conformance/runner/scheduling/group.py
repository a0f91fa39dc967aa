"""One group from its job to its end: its successive workers, and an outcome for every cell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.runner.processes import sessions
from conformance.runner.scheduling.attempt import Attempt
from conformance.runner.scheduling.deaths import (
    DEATHS_OF_A_CELL,
    Death,
    Trials,
    explain,
    in_the_trace,
)
from conformance.runner.scheduling.events import (
    CellFinished,
    CellStarted,
    Event,
    GroupLoaded,
    GroupStarted,
    WorkerDied,
)
from conformance.runner.scheduling.planned import Further, Planned
from conformance.runner.scheduling.reuse import keys_of, most_finished, take
from conformance.runner.scheduling.time_limits import TimeLimits
from conformance.runner.store import GroupFolder, ObservationCache
from conformance.runner.store.files import write_text
from conformance.spec.builtin.user_trace import USER_TRACE
from conformance.spec.records import Frame, Group, Job, Outcome, Status, to_json
from conformance.spec.scenario import folders_of, is_a_users


class GroupRun:
    """The runner's state of one group. The worker writes the files; this completes them."""

    def __init__(self, planned: Planned, job: Job, tell: Callable[[Event], None]) -> None:
        self.planned = planned
        self.job = job
        self.folder = GroupFolder(job.folder)
        self.attempt: Attempt | None = None
        #: Whether all initial cases have an outcome, while more may follow.
        self.rests = False
        self._followed = planned.follow is None
        self._more = self._barren = 0
        self._seconds = math.inf
        self.finished_here = 0
        self.reused = 0
        self._tell = tell
        self._begun = time.monotonic()
        self._trials = Trials(list(job.cases), planned.tries)
        self._keys: Mapping[str, str] = {}
        self._made_by: Group | None = None
        self._failure: Death | None = None
        self._starts = 0
        self._loaded = False
        self._tail = ""
        self._reason = ""
        #: The device where it runs or was finished; the machine, and the machines lost before.
        self.device = ""
        self.machine = ""
        self._lost: list[str] = []

    @property
    def loading(self) -> bool:
        return not (self._loaded or (self.attempt is not None and self.attempt.loaded))

    @property
    def nothing_waiting(self) -> bool:
        return not self._trials.waiting

    def reuse(self, devices: Sequence[str], cache: ObservationCache | None) -> None:
        """Reuse what was finished before; of several devices, use the one with the most.

        Raises ConformanceError if the interpreter's versions, which are part of the key, are
        unknown.
        """
        keys = {each: keys_of(self.job, self.planned.launch, each) for each in devices}
        self.device = most_finished(self.folder, keys, cache)
        self._keys = keys[self.device]
        places = self.job.scenarios
        folders = places if isinstance(places, tuple) else (places,)
        outcomes, self._made_by = take(
            self.folder, self._keys, cache, ours=self.planned.ours, folders=folders
        )
        self._note_keys(outcomes)
        for key, outcome in outcomes.items():
            self._tell_finished(key, outcome.status, outcome.seconds, reused=True)
        self.reused = len(outcomes)
        self._trials.finished(tuple(outcomes))

    def to_send(self) -> Job:
        """Return the job for another machine, whose files are synced back into this folder."""
        return replace(self.job, cases=tuple(self._trials.waiting))

    def placed(self, device: str, machine: str) -> None:
        """Record that another machine has begun the group, with all waiting cells."""
        self.give_up_machine()
        self.device, self.machine = device, machine
        self._keys = keys_of(self.job, self.planned.launch, device)
        self._note_keys(case.key for case in self._trials.waiting)

    def give_up_machine(self) -> None:
        """Drop the results of a machine that was lost or could not run the group."""
        if self.machine:
            self._lost.append(self.machine)
            for case in self._trials.waiting:
                self.folder.drop_cell(case.key)
            self.finished_here, self.machine = 0, ""

    def heard(self, event: Event) -> None:
        """Handle an event of the machine's own runner."""
        self.finished_here += isinstance(event, CellFinished)
        self._tell(event)

    def _tell_finished(
        self, case: str, status: Status, seconds: float, *, reused: bool = False
    ) -> None:
        self.finished_here += not reused
        self._tell(CellFinished(self.planned.id, case, status, seconds, reused))

    def missing(self) -> tuple[str, ...]:
        self._trials.finished(self.folder.finished())
        return tuple(case.key for case in self._trials.waiting)

    def _note_keys(self, cases: Iterable[str]) -> None:
        """Write the cells' keys; a resumed run repeats cells without one."""
        if keys := {case: self._keys[case] for case in cases if case in self._keys}:
            self.folder.write_keys({**self.folder.keys(), **keys})

    def keep(self, cache: ObservationCache) -> None:
        for case, key in self._keys.items():
            cache.keep(key, self.folder, case)

    def next_job(self) -> Path:
        """Write the next worker's job, and prepare to read its events."""
        if self._starts == 0:
            self._begun = time.monotonic()
            self._note_keys(case.key for case in self._trials.waiting)
        self._starts += 1
        name = "job.json" if self._starts == 1 else f"job.{self._starts}.json"
        path = self.folder.path / name
        job = replace(self.job, cases=tuple(self._trials.for_next_worker()))
        if self.planned.follow:
            more = self.folder.more(self._starts)
            more.mkdir(parents=True)
            job = replace(self.job, cases=tuple(self._trials.waiting), more=more)
        write_text(path, to_json(job, indent=1))
        self._more = 0
        self.attempt = Attempt.begin(self.folder, self._starts)
        names = self.planned.id, self.job.model.id, self.job.column.id
        self._tell(GroupStarted(*names, len(self._trials.waiting), self._starts))
        return path

    def watch(self, limits: TimeLimits) -> None:
        """Pass on the worker's events; kill it if it has been silent for too long."""
        self.pass_on()
        if self.attempt is not None:
            own = self.planned.limits or limits
            cell = min(own.cell, self._seconds)
            own = replace(own, cell=cell, load=max(own.load, self.planned.load))
            self.attempt.kill_when_overdue(own, time.monotonic())
            if self.idle:
                self._follow(self.attempt)

    def _follow(self, attempt: Attempt) -> None:
        """Give a worker that has run all of its cases the next ones, or let it end."""
        self.rests = True
        further = Further(())
        if self.planned.follow and not self._followed:
            answer = self.planned.follow()
            if answer is None:
                return
            further = answer
        self._followed = not further.cases
        self._seconds = further.seconds
        self._trials.waiting = list(further.cases)
        file = self.folder.more(attempt.number) / f"{self._more}.json"
        write_text(file, to_json(replace(self.job, cases=further.cases)))
        self._more += 1
        attempt.enter("between")

    def pass_on(self) -> None:
        """Pass on the worker's events. After it was killed, too: the cells it finished count."""
        for event in self.attempt.hear() if self.attempt else ():
            match event["event"]:
                case "loaded":
                    self._tell(GroupLoaded(self.planned.id, event["seconds"]))
                case "started":
                    self._tell(CellStarted(self.planned.id, event["case"]))
                case "finished":
                    status = Status(event["status"])
                    self._tell_finished(event["case"], status, event["seconds"])

    def ended(self, status: int) -> bool:
        """Account for a worker that has ended; return whether another one is needed."""
        attempt = self.attempt
        if attempt is None:
            return False
        self.pass_on()
        self.attempt = None
        self._loaded = self._loaded or attempt.loaded
        sessions.unlink_shared(attempt.shared)
        self._trials.finished(self.folder.finished())
        if attempt.phase == "close" and (attempt.finished or not self._trials.waiting):
            # It finished its cells; a failed shutdown does not affect them.
            if attempt.overdue or status:
                ended = attempt.overdue or f"the worker ended with status {status}"
                self._reason = f"after its last cell: {ended}"
                self._tail = self.folder.log_tail(attempt.log_start)
            return self._needs_another(attempt)
        self._tail = self.folder.log_tail(attempt.log_start)
        log = self.folder.log_text(attempt.log_start)
        death = explain(status, attempt)
        if self._may_be_the_blocks(death, log):
            death = replace(death, reason=f"{death.reason}; its block may have ended it")
        frames: tuple[Frame, ...] = ()
        if death.status in {Status.TIMEOUT, Status.CRASH} and death.case:
            frames = in_the_trace(log, folders_of(self.job.scenarios))
        self._tell(WorkerDied(self.planned.id, death.case, death.status, death.reason))
        if death.status is Status.TIMEOUT and frames:  # in the block itself: a retry hangs too
            given_up = self._trials.give_up(death)
        else:
            given_up = self._trials.died(death, progressed=bool(attempt.finished))
        self._record(given_up, self._tail, time.monotonic() - attempt.since, frames)
        if not self._loaded and not self._trials.waiting:
            again = not self.job.cases and not death.final and self._starts < DEATHS_OF_A_CELL
            self._failure = None if again else death
            return again
        return self._needs_another(attempt)

    def _needs_another(self, attempt: Attempt) -> bool:
        """Return whether another worker is needed, since cases have no outcome or may follow.

        A worker that ended without finishing a case says nothing about later cases, so it is
        replaced only a few times.
        """
        if self._trials.waiting:
            return True
        self._barren = 0 if attempt.finished else self._barren + 1
        if self._followed or not attempt.loaded or self._barren >= DEATHS_OF_A_CELL:
            return False
        self.rests = True
        return True

    @property
    def idle(self) -> bool:
        """Whether its worker waits for further cases."""
        return self.attempt is not None and self.attempt.phase == "idle"

    def _may_be_the_blocks(self, death: Death, log: str) -> bool:
        """Return whether a user's case may have ended its process without a message. faulthandler,
        enabled in all processes of an engine, reports fatal signals, and the worker reports an
        engine's own errors.
        """
        ended = death.status in {Status.CRASH, Status.MISSING} and bool(death.case)
        said = "Fatal Python error" in log or "(raised as: " in death.reason
        scenario = death.case.partition(".")[0]
        users = scenario == USER_TRACE.name or is_a_users(scenario, self.job.scenarios)
        return ended and not said and users

    def refuse(self, reason: str, *, harness: bool = False) -> None:
        """Give up all remaining cells because no worker can be started. `harness` says whether the
        harness caused that.
        """
        self._trials.finished(self.folder.finished())
        self._failure = Death(Status.ERROR, reason, harness=harness)
        self._record({case.key: self._failure for case in self._trials.waiting})
        self._trials.waiting = []

    def _record(
        self,
        given_up: Mapping[str, Death],
        detail: str = "",
        lasted: float = 0.0,
        frames: tuple[Frame, ...] = (),
    ) -> None:
        """Write the outcomes. Only a cell that was running `lasted`, and has `frames`."""
        for key, death in given_up.items():
            running = death.case == key
            outcome = Outcome(
                death.status,
                lasted if running else 0.0,
                death.reason,
                detail=detail,
                harness=death.harness,
                outside=death.outside,
                frames=frames if running else (),
            )
            self.folder.write_cell(key, outcome, {})
            self._tell_finished(key, outcome.status, outcome.seconds)

    def close(self) -> Group:
        """Write and return the group's complete record: its starts, and what went wrong."""
        model, backend = self.job.model.id, self.job.column.id
        record: Group | None = None
        with suppress(ConformanceError):  # a damaged record is replaced
            record = self.folder.group()
        group = record or Group(model, backend)
        if self.machine or self._lost:  # the machine's own record came with its files
            group = replace(group, machine=self.machine, lost=tuple(self._lost))
        elif self._starts == 0 and self._failure is None:
            group = replace(record or self._made_by or group, reused=True)
        else:
            seconds = time.monotonic() - self._begun
            group = replace(group, starts=self._starts, seconds=seconds, reused=False)
        if self._failure is not None:
            group = replace(group, status=self._failure.status, reason=self._failure.reason)
        reason, tail = group.reason or self._reason, self._tail or group.log_tail
        group = replace(group, model=model, backend=backend, reason=reason, log_tail=tail)
        self.folder.write_group(group)
        return group

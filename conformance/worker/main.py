"""The worker process of one group: it loads the engine, runs the cells and writes observations.

    python -m conformance.worker.main JOB.json

It never compares anything. Its standard output is the group's log and is never parsed. A cell
without an outcome means that this process died or hung; the runner finds out which.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.engines import Engine, Refused, Unreadable, load_engine, progress
from conformance.engines.refusals import refusal
from conformance.errors import ConformanceError, described
from conformance.runner.processes import sessions, temporary
from conformance.runner.store import GroupFolder, event_log, read_versions
from conformance.runner.store.files import read_record
from conformance.spec.builtin.engine_alone import WITHOUT_NNSIGHT
from conformance.spec.builtin.one_layer import ONE_LAYER
from conformance.spec.builtin.probe import PROBING
from conformance.spec.builtin.user_trace import USER_TRACE
from conformance.spec.checkpoints import cache_folder
from conformance.spec.records import Case, Group, Job, Outcome, Status
from conformance.spec.scenario import Scenario, discover, is_a_users
from conformance.worker import frames, process_state
from conformance.worker.opened import Opened
from conformance.worker.root_cause import (
    cause,
    fatal_error,
    killed_by,
    points_elsewhere,
    says_that_it_ends,
)

#: Errors raised inside this package that no engine can cause.
_OUR_MISTAKES = (NameError, SyntaxError)

#: Errors for lack of space: on a disk, in a quota, under a limit.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

#: Statuses of cells that may leave the engine changed.
_RAISED = frozenset({Status.ERROR, Status.CRASH})

#: Seconds in which a process that was told to end does so, and between two checks.
_TO_END, _A_LOOK = 10.0, 0.02

_PACKAGE = Path(__file__).parent.parent


def main(path: Path) -> int:
    """Run the job in this file; return the exit status of the process."""
    process_state.lead_session()
    job = read_record(Job, path)
    if job is None:
        raise ConformanceError("there is no such job", path=path)
    folder = GroupFolder(job.folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    process_state.redirect(folder.log)
    try:
        return JobRun(job, folder).run()
    except Exception:  # noqa: BLE001 - the engine's errors are caught further in
        traceback.print_exc()
        return sessions.HARNESS_FAILED


class JobRun:
    """The run of one group's job. `report` appends its actions to the events file."""

    def __init__(self, job: Job, folder: GroupFolder) -> None:
        self.job = job
        self.folder = folder
        self.report = partial(event_log.append_event, folder.events)
        self.folders = job.scenarios if isinstance(job.scenarios, tuple) else (job.scenarios,)
        self.begun = time.monotonic()
        #: Where the log of the present case, or of the load, begins.
        self.log_start = folder.log_size()
        self.log = process_state.log_file()
        self.roots = frames.roots(*self.folders)

    def run(self) -> int:
        """Load the engine and run every case that has no outcome yet; return the exit status."""
        job, folder = self.job, self.folder
        opened = Opened((folder.path, job.checkpoint, cache_folder()), self.folders)
        self.report("loading")
        told_start = folder.events.stat().st_size
        todo = [case for case in job.cases if folder.outcome(case.key) is None]
        try:
            scenarios = _discover_scenarios(job) if todo or job.more else {}
            opened.keep_shared()
            engine = load_engine(job.engine, job)
            group = self._group(engine.group())
            outcome = Outcome(group.status, reason=group.reason)
        except Exception as error:  # noqa: BLE001 - the boundary: every end is recorded
            group, outcome = None, _outcome_of(error)
        if group is None or group.status is Status.ERROR:  # or no trace can run
            outcome = self._with_cause(outcome)
            if self._lost_a_process(outcome):
                return self._die("", outcome)
        if group is None:
            return self._refuse_all(todo, outcome)
        members = sessions.members(os.getpid())
        # The processes that the engine reported when probed, which may have ended since; all
        # processes of the session if it reported none.
        processes = event_log.find_probed(folder.events, told_start) or members
        shared = sorted(sessions.shared_files(members | processes))
        temporary.note_shared(shared)
        self.report("loaded", seconds=group.load_seconds, shared=shared)
        if different := differences(job.expect, group.identity):
            words = f"the engine is not what the column says: {'; '.join(different)}"
            group = replace(group, status=Status.UNKNOWN, reason=words)
        folder.write_group(group)
        for case in chain(todo, self._further_cases()):
            if group.status is Status.UNKNOWN:
                self._record(case, Outcome(Status.UNKNOWN, reason=group.reason), {})
                continue
            outcome, observed = self._run_case(engine, scenarios, case, opened)
            if outcome.status is Status.ERROR and _lost(processes, outcome.reason):
                return self._die(case.key, outcome, processes)
            self._record(case, outcome, observed)
            if not self._goes_on(engine, group, outcome):
                break
        folder.write_group(replace(group, seconds=self._seconds(), peak_mib=_peak_mib()))
        self.report("closing")
        engine.close()
        self.report("closed")
        return 0

    def _seconds(self) -> float:
        return time.monotonic() - self.begun

    def _group(self, group: Group) -> Group:
        """Return an engine's group with what this worker knows of it."""
        return replace(
            group,
            model=self.job.model.id,
            backend=self.job.column.id,
            precision=self.job.precision,
            versions=read_versions(),
            load_seconds=self._seconds(),
            peak_mib=_peak_mib(),
        )

    def _further_cases(self) -> Iterator[Case]:
        """Yield the cases that appear in the job's folder, until a file without cases appears."""
        for number in count() if self.job.more else ():
            file = Path(self.job.more or "", f"{number}.json")
            self.report("idle")
            while not file.is_file():
                time.sleep(_A_LOOK)
            further = read_record(Job, file)
            if further is None or not further.cases:
                return
            yield from further.cases

    def _run_case(
        self, engine: Engine, scenarios: Mapping[str, Scenario], case: Case, opened: Opened
    ) -> tuple[Outcome, Mapping[str, Any]]:
        """Run one case in the initial process state."""
        self.report("started", case=case.key)
        self.log_start, pid = self.folder.log_size(), os.getpid()
        opened.begin()
        process_state.restore()
        with progress.of(self.folder.events, case.key):
            outcome, observed = observe(engine, scenarios, case, self.roots)
        process_state.exit_if_forked(pid)
        outcome = self._with_cause(outcome)
        outcome = replace(outcome, opened=opened.since(scenarios.get(case.scenario)))
        if outcome.status is Status.OK and is_a_users(case.scenario, self.job.scenarios):
            outcome = replace(outcome, left=self._damage(engine))
        return outcome, observed

    def _goes_on(self, engine: Engine, group: Group, outcome: Outcome) -> bool:
        """Return whether the next case may run in this worker instead of a fresh one. It may not if
        the engine or the process may have been damaged.
        """
        raised = outcome.status in _RAISED and group.status is not Status.ERROR
        # A version of a user's file may damage an engine without an error.
        if (raised or self.job.more) and not _still_well(engine, outcome):
            return False
        if outcome.left:
            with suppress(OSError):  # the case may have closed the log
                sys.stderr.write(f"the case has changed {', '.join(outcome.left)}\n")
        return not outcome.left

    def _damage(self, engine: Engine) -> tuple[str, ...]:
        """Return what a user's block has damaged, usually nothing."""
        damage = []
        if process_state.log_file() != self.log:
            damage.append("the descriptors of its process")
        unchanged = getattr(engine, "unchanged", None)
        if unchanged is not None and not _holds(unchanged):
            damage.append("what the engine computes")
        return tuple(damage)

    def _lost_a_process(self, outcome: Outcome) -> bool:
        """Return whether an engine failed to start, or to be probed, because it lost a process. A
        kill from outside is always retried; any other death is retried once: if a process dies at
        every load, the engine causes it, and its message is kept.
        """
        if killed_by(outcome.reason):
            return True
        died_before = False
        with suppress(OSError):
            died_before = b'"event": "died"' in self.folder.events.read_bytes()
        unsaid = points_elsewhere(outcome.reason) or says_that_it_ends(outcome.reason)
        return unsaid and not died_before

    def _die(self, case: str, outcome: Outcome, processes: Collection[int] = ()) -> int:
        """Report that a process of the engine died, and kill the others, which this process would
        wait for. Return this process's exit status.
        """
        gone = [str(pid) for pid in sorted(processes) if not sessions.is_alive(pid)]
        which = f" ({', '.join(gone)})" if gone else ""
        sys.stderr.write(f"{outcome.detail}\nA process of the engine has ended{which}.\n")
        number = killed_by(outcome.reason)
        how = f"it was ended from outside by {number.name}; then " if number else ""
        if not how and (fatal := fatal_error(self.folder.log_text(self.log_start))):
            how = f"{fatal}; then "
        self.report("died", case=case, words=how + outcome.reason, outside=bool(number))
        for pid in sessions.members(os.getpid()) - {os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return 1

    def _refuse_all(self, todo: list[Case], outcome: Outcome) -> int:
        """Record an engine that did not start, for the group and each of its cells."""
        sys.stderr.write(f"{outcome.detail}\n")
        sys.stderr.flush()
        tail = self.folder.log_tail(self.log_start)
        model, column = self.job.model.id, self.job.column.id
        group = self._group(Group(model, column, status=outcome.status, reason=outcome.reason))
        for case in todo:
            self._record(case, replace(outcome, detail=outcome.detail or tail), {})
        self.folder.write_group(replace(group, seconds=group.load_seconds, log_tail=tail))
        self.report("closed")
        return 0

    def _with_cause(self, outcome: Outcome) -> Outcome:
        """Replace a message that only points elsewhere with the cause from the log, if found."""
        if not points_elsewhere(outcome.reason):
            return outcome
        reason, context = cause(self.folder.log_text(self.log_start), outcome.reason)
        if not reason:
            return outcome
        refuses = refusal(reason)
        return replace(
            outcome,
            status=Status.UNSUPPORTED if refuses else outcome.status,
            reason=str(refuses or f"{reason} (raised as: {outcome.reason})"),
            detail=f"{outcome.detail}\n{context}\n",
        )

    def _record(self, case: Case, outcome: Outcome, observed: Mapping[str, Any]) -> None:
        if outcome.status is Status.ERROR and not outcome.frames:
            outcome = replace(outcome, frames=frames.frames(outcome.detail, self.roots))
        try:
            self.folder.write_cell(case.key, outcome, observed)
        except Exception as error:  # noqa: BLE001 - the boundary: every end is recorded
            # The disk is full, or the engine returned no tensors: not the trace's error.
            outcome = replace(_outcome_of(error), harness=True, seconds=outcome.seconds)
            self.folder.write_cell(case.key, outcome, {})
        self.report("finished", case=case.key, status=outcome.status, seconds=outcome.seconds)


def _discover_scenarios(job: Job) -> dict[str, Scenario]:
    built_in = {scenario.name: scenario for scenario in (PROBING, ONE_LAYER, USER_TRACE)}
    return {**built_in, **WITHOUT_NNSIGHT, **discover(job.scenarios)}


def _lost(processes: Collection[int], words: str) -> bool:
    """Return whether a process of the engine has ended, or is about to by its message."""
    until = time.monotonic() + _TO_END * says_that_it_ends(words)
    while all(map(sessions.is_alive, processes)):
        if time.monotonic() >= until:
            return False
        time.sleep(_A_LOOK)
    return True


def _still_well(engine: Engine, outcome: Outcome) -> bool:
    """Return whether the engine still computes what it did when it was loaded. After an error, an
    engine that cannot check this does not count as well; nor does one that crashed.
    """
    look = getattr(engine, "still_well", None)
    if look is None or outcome.status not in {Status.ERROR, Status.OK}:
        return outcome.status not in _RAISED
    return _holds(look)


def _holds(look: Callable[[], object]) -> bool:
    """Return the result of `look` as a boolean, False if it raises."""
    try:
        return bool(look())
    except Exception:  # noqa: BLE001 - a broken engine may raise anything
        traceback.print_exc()
        return False


def observe(
    engine: Engine,
    scenarios: Mapping[str, Scenario],
    case: Case,
    owners: frames.Roots = MappingProxyType({}),
) -> tuple[Outcome, Mapping[str, Any]]:
    """Run one case and return its outcome, however it ends. `owners` maps folders to the owners of
    their code.
    """
    begun = time.monotonic()
    try:
        observed = engine.run(_scenario(scenarios, case.scenario), case)
        seconds = time.monotonic() - begun
        prompt_ids = engine.prompt_ids(case)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        exits = not isinstance(error, Exception)
        if exits and not process_state.raised_by_a_block(error, owners):
            raise
        return replace(_outcome_of(error), seconds=time.monotonic() - begun), {}
    if not observed:
        return Outcome(Status.UNKNOWN, seconds, "nothing was observed"), {}
    hooks = int(getattr(engine, "hooks", 0))
    return Outcome(Status.OK, seconds, prompt_ids=prompt_ids, hooks=hooks), observed


def _scenario(scenarios: Mapping[str, Scenario], name: str) -> Scenario:
    if name not in scenarios:
        raise ConformanceError(f"there is no scenario {name!r}")
    return scenarios[name]


def _outcome_of(error: BaseException) -> Outcome:
    """Return an exception's outcome: refused, unreadable, or an error."""
    words = str(error).strip()
    if isinstance(error, Refused):
        return Outcome(Status.UNSUPPORTED, reason=words)
    if isinstance(error, Unreadable):
        return Outcome(Status.STRUCTURE, reason=words)
    return Outcome(
        Status.ERROR,
        reason=described(error),
        detail="".join(traceback.format_exception(error)),
        harness=harness_fault(error),
    )


def harness_fault(error: BaseException) -> bool:
    """Return whether the harness or its machine, not the engine or the trace, caused the error.

    An engine may cause a wrong value in the harness's code, but neither a misspelt name nor a lack
    of space for a file.
    """
    if isinstance(error, ConformanceError):
        return True
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    if isinstance(error, ImportError):
        return (error.name or "").split(".")[0] == "conformance"
    if not isinstance(error, _OUR_MISTAKES):
        return False
    raised_in = traceback.extract_tb(error.__traceback__)
    return bool(raised_in) and Path(raised_in[-1].filename).is_relative_to(_PACKAGE)


def differences(expected: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return where the engine's identity differs from what its column expects."""
    plain, promised = (json.loads(json.dumps(dict(x), default=str)) for x in (identity, expected))
    return [
        f"{name} is {plain[name]!r}, expected {value!r}"
        if name in plain
        else f"{name} is not known, expected {value!r}"
        for name, value in promised.items()
        if name not in plain or plain[name] != value
    ]


def _peak_mib() -> float:
    """Return the peak resident size of this process plus its largest ended child's, in MiB."""
    return sum(
        resource.getrusage(processes).ru_maxrss / 1024
        for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

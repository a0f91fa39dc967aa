"""The worker process of one group: it loads the engine, runs the cells and writes observations.

    python -m conformance.worker.main JOB.json

It never compares anything. Its standard output is the group's log and is never parsed. A cell
without an outcome means that this process died or hung; the runner finds out which.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from conformance.builtin.engine_alone import WITHOUT_NNSIGHT
from conformance.builtin.one_layer import ONE_LAYER
from conformance.builtin.probe import PROBING
from conformance.builtin.user_trace import USER_TRACE
from conformance.checkpoints import cache_folder
from conformance.engines import Engine, Refused, Unreadable, load_engine, progress
from conformance.engines.refusals import refusal
from conformance.errors import ConformanceError, described
from conformance.processes import sessions, temporary
from conformance.records import Case, Group, Job, Outcome, Status
from conformance.scenario import Scenario, discover, is_a_users
from conformance.store import GroupFolder, event_log, installed
from conformance.store.files import read_record
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
_OUR_MISTAKES = (NameError, SyntaxError, ImportError)

#: Statuses of cells that may leave the engine changed.
_RAISED = frozenset({Status.ERROR, Status.CRASH})

#: Bytes that every engine may allocate, since engines request more than they use.
_ROOM = 8 << 30

#: Seconds in which a process that was told to end does so, and between two checks.
_TO_END, _A_LOOK = 10.0, 0.02

_PACKAGE = Path(__file__).parent.parent


class EventLog:
    """The events file, which records the worker's actions, one JSON object per line.

    Times are from the monotonic clock, which all processes of a machine share.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, event: str, **fields: Any) -> None:
        event_log.append_event(self._path, event, **fields)


def main(path: Path) -> int:
    """Run the job in this file; return the exit status of the process."""
    lead_session()
    job = read_record(Job, path)
    if job is None:
        raise ConformanceError("there is no such job", path=path)
    folder = GroupFolder(job.folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    redirect(folder.log)
    try:
        return run(job, folder, EventLog(folder.events))
    except Exception:  # noqa: BLE001 - the engine's errors are caught further in
        traceback.print_exc()
        return sessions.HARNESS_FAILED


def lead_session() -> None:
    """Lead a session, so that ending this worker ends everything that its engine started."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    sessions.die_with_parent()
    sessions.adopt_orphans()
    temporary.name_shared()
    # Crashes are expected now and then; do not write an engine's memory to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    limit_memory()


def limit_memory() -> None:
    """Make endless allocation raise an error before the kernel runs out of memory and kills some
    process. Each process may have most of the memory. No limit is set with a GPU, whose driver
    reserves memory differently.
    """
    if Path("/dev/nvidiactl").exists():
        return
    memory = psutil.virtual_memory()
    most = max(memory.available * 3 // 4, memory.total // 2, _ROOM)
    allowed, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if allowed == resource.RLIM_INFINITY or allowed > most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def redirect(log: Path) -> None:
    """Redirect all output of this process and its children to the log."""
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)
    faulthandler.enable(file=2)
    os.environ["PYTHONFAULTHANDLER"] = "1"  # for processes not forked from this one
    # The runner requests all threads' stacks before it ends a hanging worker.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def run(job: Job, folder: GroupFolder, report: EventLog) -> int:
    """Load the engine and run every case that has no outcome yet."""
    begun, log_start, log = time.monotonic(), folder.log_size(), _log_file()
    folders = job.scenarios if isinstance(job.scenarios, tuple) else (job.scenarios,)
    opened = Opened((folder.path, job.checkpoint, cache_folder()), folders)
    report("loading")
    told_start = folder.events.stat().st_size
    todo = [case for case in job.cases if folder.outcome(case.key) is None]
    try:
        built_in = {scenario.name: scenario for scenario in (PROBING, ONE_LAYER, USER_TRACE)}
        wanted = todo or job.more
        scenarios = built_in | WITHOUT_NNSIGHT | discover(job.scenarios) if wanted else {}
        opened.keep_shared()
        engine = load_engine(job.engine, job)
        group = replace(
            engine.group(),
            model=job.model.id,
            backend=job.column.id,
            precision=job.precision,
            versions=installed(),
            load_seconds=time.monotonic() - begun,
            peak_mib=peak_mib(),
        )
    except Exception as error:  # noqa: BLE001 - the boundary: every end is recorded
        outcome = _with_cause(_outcome_of(error), folder, log_start)
        if _lost_a_process(outcome, folder):
            return _died(report, "", outcome, folder.log_text(log_start))
        return _refuse_all(job, folder, todo, report, outcome, begun=begun, log_start=log_start)
    if group.status is Status.ERROR:  # no trace can run
        outcome = _with_cause(Outcome(Status.ERROR, reason=group.reason), folder, log_start)
        if _lost_a_process(outcome, folder):
            return _died(report, "", outcome, folder.log_text(log_start))
    members = sessions.members(os.getpid())
    # The processes that the engine reported when probed, which may have ended since; all processes
    # of the session if it reported none.
    processes = event_log.probed_with(folder.events, told_start) or members
    shared = sorted(sessions.shared_files(members | processes))
    temporary.note_shared(shared)
    report("loaded", seconds=group.load_seconds, shared=shared)
    group = _as_asked(group, job)
    folder.write_group(group)
    for case in chain(todo, _further_cases(job.more, report)):
        if group.status is Status.UNKNOWN:
            _record(folder, job, case, Outcome(Status.UNKNOWN, reason=group.reason), {}, report)
            continue
        report("started", case=case.key)
        log_start = folder.log_size()
        opened.begin()
        outcome, observed = _run_case(engine, scenarios, case, job, folder)
        scenario = scenarios.get(case.scenario)
        outcome = replace(outcome, opened=opened.since(scenario))
        if outcome.status is Status.ERROR and _lost(processes, outcome.reason):
            return _died(report, case.key, outcome, folder.log_text(log_start), processes)
        if outcome.status is Status.OK and is_a_users(case.scenario, job.scenarios):
            outcome = replace(outcome, left=_damage(engine, log))
        _record(folder, job, case, outcome, observed, report)
        if not _goes_on(engine, group, outcome, job):
            break
    peak, seconds = peak_mib(), time.monotonic() - begun
    folder.write_group(replace(group, seconds=seconds, peak_mib=peak))
    report("closing")
    engine.close()
    report("closed")
    return 0


def _goes_on(engine: Engine, group: Group, outcome: Outcome, job: Job) -> bool:
    """Return whether the next case may run in this worker instead of a fresh one. It may not if the
    engine or the process may have been damaged.
    """
    raised = outcome.status in _RAISED and group.status is not Status.ERROR
    # A version of a user's file may damage an engine without an error.
    if (raised or job.more) and not _still_well(engine, outcome):
        return False
    if outcome.left:
        with suppress(OSError):  # the case may have closed the log
            sys.stderr.write(f"the case has changed {', '.join(outcome.left)}\n")
    return not outcome.left


def _further_cases(more: Path | None, report: EventLog) -> Iterator[Case]:
    """Yield the cases that appear in this folder, until a file without cases appears."""
    for number in count() if more else ():
        file = Path(more or "", f"{number}.json")
        report("idle")
        while not file.is_file():
            time.sleep(_A_LOOK)
        further = read_record(Job, file)
        if further is None or not further.cases:
            return
        yield from further.cases


def _as_asked(group: Group, job: Job) -> Group:
    """Return the group, with status unknown if the engine is not what its column requests."""
    different = differences(job.expect, group.identity)
    if not different:
        return group
    words = f"the engine is not what the column says: {'; '.join(different)}"
    return replace(group, status=Status.UNKNOWN, reason=words)


def _lost_a_process(outcome: Outcome, folder: GroupFolder) -> bool:
    """Return whether an engine failed to start, or to be probed, because it lost a process. A kill
    from outside is always retried; any other death is retried once.
    """
    unsaid = points_elsewhere(outcome.reason) or says_that_it_ends(outcome.reason)
    return bool(killed_by(outcome.reason)) or (unsaid and not _died_before(folder))


def _lost(processes: Collection[int], words: str) -> bool:
    """Return whether a process of the engine has ended, or is about to by its message."""
    until = time.monotonic() + _TO_END * says_that_it_ends(words)
    while all(map(sessions.alive, processes)):
        if time.monotonic() >= until:
            return False
        time.sleep(_A_LOOK)
    return True


def _died(
    report: EventLog,
    case: str,
    outcome: Outcome,
    log: str,
    processes: Iterable[int] = (),
) -> int:
    """Report that a process of the engine died, and kill the others, which this process would wait
    for. Return this process's exit status.
    """
    gone = [str(pid) for pid in sorted(processes) if not sessions.alive(pid)]
    which = f" ({', '.join(gone)})" if gone else ""
    sys.stderr.write(f"{outcome.detail}\nA process of the engine has ended{which}.\n")
    number = killed_by(outcome.reason)
    how = f"it was ended from outside by {number.name}; then " if number else ""
    if not how and (fatal := fatal_error(log)):
        how = f"{fatal}; then "
    report("died", case=case, words=how + outcome.reason, outside=bool(number))
    for pid in sessions.members(os.getpid()) - {os.getpid()}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return 1


def _died_before(folder: GroupFolder) -> bool:
    """Return whether a process of this group's engine died before. If that happens at every load,
    the engine causes it, and its message is kept.
    """
    with suppress(OSError):
        return b'"event": "died"' in folder.events.read_bytes()
    return False


def _still_well(engine: Engine, outcome: Outcome) -> bool:
    """Return whether the engine still computes what it did when it was loaded.

    After an error, an engine that cannot check this does not count as well. Nor does one if the
    block tried to exit its process.
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


def _run_case(
    engine: Engine,
    scenarios: Mapping[str, Scenario],
    case: Case,
    job: Job,
    folder: GroupFolder,
) -> tuple[Outcome, Mapping[str, Any]]:
    """Run one case in the initial process state."""
    log_start, pid = folder.log_size(), os.getpid()
    process_state.restore()
    with progress.of(folder.events, case.key):
        outcome, observed = observe(engine, scenarios, case, _roots(job))
    process_state.exit_if_forked(pid)
    return _with_cause(outcome, folder, log_start), observed


def _damage(engine: Engine, log: tuple[int, int]) -> tuple[str, ...]:
    """Return what a user's block has damaged, usually nothing."""
    damage = []
    if _log_file() != log:
        damage.append("the descriptors of its process")
    unchanged = getattr(engine, "unchanged", None)
    if unchanged is not None and not _holds(unchanged):
        damage.append("what the engine computes")
    return tuple(damage)


def _log_file() -> tuple[int, int]:
    """Return the device and inode of this process's standard error."""
    with suppress(OSError):
        status = os.fstat(2)
        return status.st_dev, status.st_ino
    return 0, 0


def _refuse_all(
    job: Job,
    folder: GroupFolder,
    todo: list[Case],
    report: EventLog,
    outcome: Outcome,
    *,
    begun: float,
    log_start: int,
) -> int:
    """Record an engine that did not start, for the group and each of its cells."""
    sys.stderr.write(f"{outcome.detail}\n")
    sys.stderr.flush()
    seconds = time.monotonic() - begun
    tail = folder.log_tail(log_start)
    for case in todo:
        _record(folder, job, case, replace(outcome, detail=outcome.detail or tail), {}, report)
    folder.write_group(
        Group(
            job.model.id,
            job.column.id,
            precision=job.precision,
            status=outcome.status,
            reason=outcome.reason,
            versions=installed(),
            load_seconds=seconds,
            seconds=seconds,
            peak_mib=peak_mib(),
            log_tail=tail,
        )
    )
    report("closed")
    return 0


def _with_cause(outcome: Outcome, folder: GroupFolder, log_start: int) -> Outcome:
    """Replace a message that only points elsewhere with the cause from the log, if found."""
    if not points_elsewhere(outcome.reason):
        return outcome
    reason, context = cause(folder.log_text(log_start), outcome.reason)
    if not reason:
        return outcome
    refuses = refusal(reason)
    return replace(
        outcome,
        status=Status.UNSUPPORTED if refuses else outcome.status,
        reason=str(refuses or f"{reason} (raised as: {outcome.reason})"),
        detail=f"{outcome.detail}\n{context}\n",
    )


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
    except Exception as error:  # noqa: BLE001 - the boundary: every end is recorded
        return replace(_outcome_of(error), seconds=time.monotonic() - begun), {}
    except (SystemExit, KeyboardInterrupt) as error:
        if not process_state.raised_by_a_block(error, owners):
            raise  # not raised by the block
        return replace(_outcome_of(error), seconds=time.monotonic() - begun), {}
    if not observed:
        return Outcome(Status.UNKNOWN, seconds, "nothing was observed"), {}
    hooks = int(getattr(engine, "hooks", 0))
    return Outcome(Status.OK, seconds, prompt_ids=prompt_ids, hooks=hooks), observed


def _scenario(scenarios: Mapping[str, Scenario], name: str) -> Scenario:
    if name not in scenarios:
        raise ConformanceError(f"there is no scenario {name!r}")
    return scenarios[name]


def _record(
    folder: GroupFolder,
    job: Job,
    case: Case,
    outcome: Outcome,
    observed: Mapping[str, Any],
    report: EventLog,
) -> None:
    if outcome.status is Status.ERROR and not outcome.frames:
        outcome = replace(outcome, frames=frames.frames(outcome.detail, _roots(job)))
    try:
        folder.write_cell(case.key, outcome, observed)
    except Exception as error:  # noqa: BLE001 - the boundary: every end is recorded
        # The disk is full, or the engine returned no tensors: not the trace's error.
        outcome = replace(_outcome_of(error), harness=True, seconds=outcome.seconds)
        folder.write_cell(case.key, outcome, {})
    report("finished", case=case.key, status=outcome.status, seconds=outcome.seconds)


def _roots(job: Job) -> frames.Roots:
    folders = job.scenarios if isinstance(job.scenarios, tuple) else (job.scenarios,)
    return _roots_of(folders)


@cache
def _roots_of(folders: tuple[Path, ...]) -> frames.Roots:
    return frames.roots(*folders)


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


#: Errors for lack of space: on a disk, in a quota, under a limit.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def harness_fault(error: BaseException) -> bool:
    """Return whether the harness or its machine, not the engine or the trace, caused the error.

    An engine may cause a wrong value in the harness's code, but neither a misspelt name nor a lack
    of space for a file.
    """
    if isinstance(error, ConformanceError):
        return True
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    if not isinstance(error, _OUR_MISTAKES):
        return False
    if isinstance(error, ImportError):
        return (error.name or "").split(".")[0] == "conformance"
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(_PACKAGE)


def differences(expected: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return where the engine's identity differs from what its column expects."""
    plain = json.loads(json.dumps(dict(identity), default=str))
    promised = json.loads(json.dumps(dict(expected), default=str))
    return [
        f"{name} is {plain[name]!r}, expected {value!r}"
        if name in plain
        else f"{name} is not known, expected {value!r}"
        for name, value in promised.items()
        if name not in plain or plain[name] != value
    ]


def peak_mib() -> float:
    """Return the peak resident size of this process plus its largest ended child's, in MiB."""
    return sum(
        resource.getrusage(processes).ru_maxrss / 1024
        for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

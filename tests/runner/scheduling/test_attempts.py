"""The limit that a worker is under, by what it says that it does."""

from pathlib import Path

from conformance.engines import progress
from conformance.runner.scheduling.attempt import Attempt
from conformance.runner.scheduling.time_limits import TimeLimits
from conformance.runner.store import GroupFolder, event_log


def test_every_run_of_a_case_has_the_whole_limit(tmp_path: Path) -> None:
    folder = GroupFolder(tmp_path)
    attempt = Attempt.begin(folder, 0)
    for event in ("started", "again", "again"):
        event_log.append_event(folder.events, event, case="user_trace.mine")
        [heard] = attempt.hear()
        assert attempt.since == heard["at"]
        assert (attempt.case, attempt.phase) == ("user_trace.mine", "cell")
    attempt.kill_when_overdue(TimeLimits(cell=30), attempt.since + 29)
    assert not attempt.overdue
    attempt.kill_when_overdue(TimeLimits(cell=30), attempt.since + 31)
    assert attempt.overdue == "no outcome within 30 s"


def test_every_trace_of_a_case_has_the_whole_limit_but_a_loop_that_never_ends(
    tmp_path: Path,
) -> None:
    folder = GroupFolder(tmp_path)
    attempt = Attempt.begin(folder, 0)
    progress.trace_begins()  # of a probe, of which nobody is told
    event_log.append_event(folder.events, "started", case="drawing_first.1.0-0")
    with progress.of(folder.events, "drawing_first.1.0-0"):
        for _ in range(progress.MOST):
            progress.trace_begins()
            last = attempt.hear()[-1]
            assert (last["event"], last["case"]) == ("again", "drawing_first.1.0-0")
            assert attempt.since == last["at"]
        progress.trace_begins()
    progress.trace_begins()
    assert not attempt.hear()
    assert attempt.phase == "cell"

"""What the end of a worker is called, and that trying again always comes to an end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.runner.processes import sessions
from conformance.runner.scheduling.attempt import Attempt
from conformance.runner.scheduling.deaths import DEATHS_IN_A_ROW, Death, Trials, explain
from conformance.runner.store import GroupFolder
from conformance.spec.records import Case, Status


def cases(count: int) -> list[Case]:
    return [Case("plain", str(index), ("a",)) for index in range(count)]


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"status": -signal.SIGSEGV, "case": "c"}, Status.CRASH, "SIGSEGV while running c"),
        ({"status": -signal.SIGKILL, "case": "c"}, Status.CRASH, "SIGKILL (out of memory?)"),
        ({"status": -199, "case": "c"}, Status.CRASH, "signal 199"),
        ({"status": 0}, Status.MISSING, "exit status 0 between cells"),
        ({"status": 7, "case": "c"}, Status.CRASH, "exit status 7 while running c"),
        ({"status": -9, "case": "c", "overdue": "too long"}, Status.TIMEOUT, "too long"),
        ({"status": sessions.HARNESS_FAILED, "case": "c"}, Status.ERROR, "worker itself failed"),
    ],
)
def test_an_end_is_called_by_its_name(given: dict[str, object], status: Status, words: str) -> None:
    death = ended(**given)
    assert death.status is status
    assert words in death.reason
    assert death.harness is (given["status"] == sessions.HARNESS_FAILED)
    killed = given["status"] == -signal.SIGKILL and "overdue" not in given
    assert death.outside is killed


def ended(status: int, **more: object) -> Death:
    return explain(status, Attempt(GroupFolder(Path()), 1, **{"loaded": True, **more}))


def test_only_a_load_that_takes_too_long_is_not_tried_again() -> None:
    assert ended(-9, loaded=False, overdue="too long").final
    assert not ended(-9, loaded=True, overdue="too long").final


def test_a_cell_under_which_a_worker_died_runs_again_alone() -> None:
    trials = Trials(cases(4))
    for name in ("plain.0", "plain.1"):
        assert trials.died(Death(Status.CRASH, "", name), progressed=False) == {}
    assert [case.name for case in trials.waiting] == ["2", "3", "0", "1"]
    assert [case.name for case in trials.for_next_worker()] == ["2", "3"]
    trials.finished(["plain.2", "plain.3"])
    assert [case.name for case in trials.for_next_worker()] == ["0"]
    trials.finished(["plain.0"])
    assert [case.name for case in trials.for_next_worker()] == ["1"]


@pytest.mark.parametrize("tries", [1, 2])
def test_a_cell_is_given_up_after_as_many_tries_as_it_has_with_its_last_words(tries: int) -> None:
    trials = Trials(cases(2), tries=tries)
    if tries == 2:
        trials.died(Death(Status.CRASH, "first", "plain.0"), progressed=False)
    last = Death(Status.TIMEOUT, "last", "plain.0")
    assert trials.died(last, progressed=False) == {"plain.0": last}
    assert [case.name for case in trials.waiting] == ["1"]


def test_a_load_is_tried_twice_unless_another_would_end_alike() -> None:
    death = Death(Status.CRASH, "while loading")
    trials = Trials(cases(2))
    assert trials.died(death, progressed=False) == {}
    assert trials.died(death, progressed=False) == {"plain.0": death, "plain.1": death}
    final = Death(Status.TIMEOUT, "too long", final=True)
    assert len(Trials(cases(2)).died(final, progressed=False)) == 2


def test_a_cell_that_was_not_tried_is_not_blamed() -> None:
    trials = Trials(cases(DEATHS_IN_A_ROW + 1))
    given_up: dict[str, Death] = {}
    for index in range(DEATHS_IN_A_ROW):
        assert not given_up
        death = Death(Status.TIMEOUT, f"hang {index}", f"plain.{index}")
        given_up = trials.died(death, progressed=False)
    assert not trials.waiting
    assert given_up["plain.0"].reason == "hang 0"
    untried = given_up[f"plain.{DEATHS_IN_A_ROW}"]
    assert untried.status is Status.ERROR
    assert untried.reason.startswith("not tried: 6 workers in a row finished no cell")
    assert untried.reason.endswith(f"hang {DEATHS_IN_A_ROW - 1}")


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), min_size=60, max_size=60),
)
def test_every_group_comes_to_its_end_with_every_cell_accounted_for(
    count: int, lives: list[tuple[int, bool, bool]]
) -> None:
    """Workers that finish some cells and then die, in a cell or between two: at most two
    deaths for each cell and two idle ones are possible before nothing is left.
    """
    trials = Trials(cases(count))
    every = {case.key for case in trials.waiting}
    ended: dict[str, str] = {}
    for workers, (progress, in_cell, final) in enumerate(lives):
        if not trials.waiting:
            break
        assert workers <= 4 * count + 2
        finished = [case.key for case in trials.waiting[:progress]]
        trials.finished(finished)
        ended |= dict.fromkeys(finished, "finished")
        if not trials.waiting:
            break
        case = trials.waiting[0].key if in_cell else ""
        death = Death(Status.CRASH, "died", case, final=final and not in_cell)
        given_up = trials.died(death, progressed=bool(finished))
        assert not given_up.keys() & ended.keys(), "a cell ended twice"
        ended |= dict.fromkeys(given_up, "given up")
        assert {case.key for case in trials.waiting} | ended.keys() == every
    else:
        raise AssertionError("it never ended")
    assert ended.keys() == every

"""Engines and a search: who waits for whom, and what remains of an engine that has ended."""

from __future__ import annotations

import pytest

from conformance.runner.scheduling import Further, GroupFinished
from conformance.runner.scheduling.open_engines import Session
from conformance.spec.records import Case

ONE, TWO = (Further((Case("check", name, ()),), 5.0) for name in ("one", "two"))


def test_the_search_goes_on_when_every_engine_is_idle():
    def steps():
        yield {"a": ONE}
        yield {"a": TWO, "b": TWO}

    session = Session({"a", "b"}, steps())
    assert session.follow("a") is None  # b still runs its own cases
    assert session.follow("b") is None
    assert session.follow("a") == ONE
    assert session.follow("b") is None  # a is at work
    assert session.follow("a") == TWO
    assert session.follow("b") == TWO
    assert session.follow("a") is None
    assert session.follow("b") == Further(())
    assert session.follow("a") == Further(())


def test_an_engine_that_has_ended_is_waited_for_no_longer():
    def steps():
        yield {"a": ONE}
        yield {"b": TWO}

    session = Session({"a", "b"}, steps())
    session.hear(GroupFinished("a", ok=False, reason="it died", reused=False))
    # What was asked of it is passed over: its cases have no outcome.
    assert session.follow("b") == TWO
    assert session.follow("b") == Further(())


def test_an_error_of_the_search_ends_the_engines_and_is_kept():
    def steps():
        yield {"a": ONE}
        raise ZeroDivisionError

    session = Session({"a"}, steps())
    assert session.follow("a") == ONE
    assert session.follow("a") == Further(())
    with pytest.raises(ZeroDivisionError):
        raise session.error

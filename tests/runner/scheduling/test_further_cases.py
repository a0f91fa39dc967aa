"""An engine that stays: what one of its further cases does costs that case alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.runner.scheduling import Further, GroupFinished, GroupStarted, run
from conformance.spec.records import Case, Status
from tests.faulty_run import LIMITS, noted, outcome_of, refusing


def _asked(*batches: tuple[str, ...]):
    """Further cases, a batch at a time; None once before each: the engine waits."""
    waiting = [answer for batch in batches for answer in (None, batch)]

    def follow() -> Further | None:
        if not waiting:
            return Further(())
        batch = waiting.pop(0)
        return None if batch is None else Further(tuple(Case("plain", n, ("a",)) for n in batch), 3)

    return follow


@pytest.mark.parametrize("engine", ["healthy", "raises", "aborts", "exits", "hangs"])
def test_what_a_further_case_does_to_its_engine_costs_that_case_alone(tmp_path: Path, engine: str):
    events = []
    follow = _asked(("more", "bad", "most"), ("last",))
    one = refusing(engine, tmp_path, cases=("first",), follow=follow, tries=1)
    summary = run([one], logs=tmp_path / "logs", limits=LIMITS, on_event=events.append)
    assert not summary.interrupted
    for case in ("first", "more", "most", "last"):
        assert outcome_of(tmp_path, engine, case).status is Status.UNSUPPORTED
    bad = outcome_of(tmp_path, engine, "bad").status
    damaged = engine != "healthy"
    assert (bad is not Status.UNSUPPORTED) == damaged
    starts = sum(isinstance(event, GroupStarted) for event in events)
    assert starts == 1 + damaged
    assert sorted(noted(tmp_path, engine)) == sorted(["first", "more", "bad", "most", "last"])
    assert isinstance(events[-1], GroupFinished)


def test_who_needs_a_job_that_stays_does_not_wait_for_its_end(tmp_path: Path):
    order = []
    done = {"second": False}

    def follow() -> Further | None:
        return Further(()) if done["second"] else None

    def hear(event):
        if isinstance(event, GroupFinished):
            order.append(event.id)
            done["second"] |= event.id == "raises"

    first = refusing("healthy", tmp_path, cases=("first",), follow=follow)
    second = refusing("raises", tmp_path, cases=("first",), needs=("healthy",))
    run([first, second], logs=tmp_path / "logs", jobs=1, limits=LIMITS, on_event=hear)
    assert order == ["raises", "healthy"]

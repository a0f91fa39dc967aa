"""What is counted, and what is printed where there is no terminal."""

from __future__ import annotations

import io
import itertools

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conformance.report.progress import Progress
from conformance.runner.scheduling.events import (
    CellFinished,
    CellStarted,
    GroupFinished,
    GroupLoaded,
    GroupStarted,
    WorkerDied,
)
from conformance.spec.records import Cell, Status

CELLS = (
    Cell("llama", "hf", "clean", "all"),
    Cell("llama", "hf", "steering", "first"),
    Cell("llama", "vllm-pp1", "clean", "all"),
)
HF, PP1, REFERENCE = "llama:hf", "llama:vllm-pp1", "llama:reference"


def printed(*events: object, terminal: bool = False) -> str:
    out = io.StringIO()
    ticks = itertools.count()
    screen = Console(file=out, width=120, force_terminal=terminal)
    with Progress(CELLS, screen, now=lambda: float(next(ticks))) as progress:
        for event in events:
            progress(event)  # type: ignore[arg-type]
    return out.getvalue()


def board() -> Progress:
    return Progress(CELLS, Console(file=io.StringIO()), now=lambda: 0.0)


def test_one_plain_line_a_finished_group_and_none_a_cell() -> None:
    text = printed(
        GroupStarted(HF, "llama", "hf", 2, 1),
        GroupLoaded(HF, 2.0),
        CellStarted(HF, "clean.all"),
        CellFinished(HF, "clean.all", Status.OK, 0.1),
        CellFinished(HF, "steering.first", Status.OK, 0.1),
        GroupFinished(HF, ok=True, reason="", reused=False),
    )
    (line,) = text.splitlines()
    assert "2/3 cells, 1/2 groups" in line
    assert "\x1b" not in line


def test_the_reference_is_shown_and_not_counted() -> None:
    state = board()
    state.take(GroupStarted(REFERENCE, "llama", "reference", 3, 1))
    state.take(CellFinished(REFERENCE, "clean.all", Status.OK, 1.0))
    assert REFERENCE in state.running
    assert state.tally().startswith("0/3 cells, 0/2 groups")


def test_a_group_that_fails_as_a_whole_ends_its_cells_and_says_why() -> None:
    text = printed(GroupFinished(HF, ok=False, reason="the engine did not start", reused=False))
    assert "2/3 cells" in text
    assert "the engine did not start" in text


def test_a_death_is_told_at_once_and_a_live_display_leaves_no_bar_behind() -> None:
    died = WorkerDied(PP1, "clean.all", Status.CRASH, "signal 6")
    assert "llama:vllm-pp1: crash in clean.all: signal 6" in printed(died)
    text = printed(GroupStarted(HF, "llama", "hf", 2, 1), died, terminal=True)
    assert "crash in clean.all" in text and "\x1b[2K" in text


def test_a_worker_is_listed_while_it_runs_and_not_after() -> None:
    state = board()
    state.take(GroupStarted(HF, "llama", "hf", 2, 2))
    assert state.running[HF][0] == "start 2"
    state.take(CellStarted(HF, "clean.all"))
    assert state.running[HF][0] == "clean.all"
    state.take(GroupFinished(HF, ok=True, reason="", reused=False))
    assert not state.running


GROUPS = st.sampled_from([HF, PP1, REFERENCE])
EVENTS = st.one_of(
    st.builds(GroupStarted, GROUPS, st.just("m"), st.just("b"), st.just(1), st.just(1)),
    st.builds(
        CellFinished,
        GROUPS,
        st.sampled_from(["clean.all", "steering.first", "x~1"]),
        st.sampled_from(Status),
        st.just(0.0),
    ),
    st.builds(GroupFinished, GROUPS, st.booleans(), st.just(""), st.booleans()),
)


@given(st.lists(EVENTS))
def test_never_more_is_done_than_was_planned(events: list[object]) -> None:
    state = board()
    for event in events:
        before = len(state.done)
        state.take(event)  # type: ignore[arg-type]
        assert before <= len(state.done) <= state.cells
        assert sum(state.ended.values()) <= len(state.done)  # a cell that is told twice counts once

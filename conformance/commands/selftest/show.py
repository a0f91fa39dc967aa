"""Print the progress and the table of a self-test on the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from conformance.commands.selftest.controls import CONTROLS
from conformance.report.render import terminal
from conformance.report.sections import selftest as selftest_section
from conformance.report.sections.section import Note, Text
from conformance.report.verdict_styles import Family
from conformance.runner.scheduling.events import Event, GroupFinished
from conformance.spec.records.injected import Ending, Row, SelfTest


class Lines:
    """Prints only the ends of groups: deaths are intended here."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __call__(self, event: Event) -> None:
        if isinstance(event, GroupFinished):
            words = "done" if event.ok else event.reason
            self.console.print(f"{event.id}: {words}", markup=False, soft_wrap=True)


def show(outcome: SelfTest, console: Console) -> None:
    """Print faults × scenarios × backends, the totals, and the misses with their reasons."""
    complaints = [
        *(f"{row.id}: {words}" for row in outcome.rows if (words := complaint(row))),
        *(f"false alarm {one.id}: {one.verdict}: {one.reason}" for one in outcome.alarms),
        *(f"does not hold: {words}" for words in outcome.broken),
    ]
    notes = (Note(Text(words, Family.WRONG)) for words in complaints)
    terminal.blocks([selftest_section.section(outcome), *notes], console)
    console.print(
        f"self-test {'failed' if outcome.broken else 'passed'} in {outcome.seconds:.0f} s"
    )


def show_controls(outcomes: Iterable[tuple[str, tuple[str, ...]]], console: Console) -> bool:
    """Print a line for each broken gate as it becomes known. Return whether the intact judge breaks
    no bar and each broken one breaks some.
    """
    as_expected = True
    for gate, broken in outcomes:
        red = bool(broken)
        as_expected = as_expected and red is bool(gate)
        name = f"without {gate}" if gate in CONTROLS else gate or "sound"
        words = broken[0] if red else "every bar holds"
        console.print(f"{name:<22} {'red' if red else 'green':<6} {words}", soft_wrap=True)
    console.print("each control is red" if as_expected else "does not hold")
    return as_expected


def complaint(row: Row) -> str:
    """Return what is wrong with a row, or ""."""
    if row.ending is Ending.MISSED:
        size = "" if row.size is None else f", {row.size:.2f} × the detectable error"
        return f"missed{size}: {row.verdict}: {row.reason}"
    if row.ending is Ending.ALARM:
        return f"false alarm: {row.verdict}: {row.reason}"
    if row.ending is not Ending.CAUGHT:
        return ""
    complaints = []
    if not row.right_verdict:
        complaints.append(
            f"verdict {row.verdict} instead of {' or '.join(row.expected)}: {row.reason}"
        )
    if row.right_diagnosis is False:
        complaints.append(f"diagnosis without “{' or '.join(row.says)}”: {row.diagnosis!r}")
    if row.right_side is False:
        complaints.append(f"attributed to {row.attribution}, injected into {row.side}: {row.blame}")
    elif row.right_apart is False:
        complaints.append(
            f"without a fault-free column, attributed to {row.apart}, injected into {row.side}: "
            f"{row.blame}"
        )
    return "; ".join(complaints)

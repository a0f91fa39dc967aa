"""The self-test's table on the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.selftest.table import Ending, Row, SelfTest

_STYLES = {
    Ending.CAUGHT: "green",
    Ending.QUIET: "green",
    Ending.MISSED: "bold red",
    Ending.ALARM: "bold red",
    Ending.BELOW: "yellow",
    Ending.ABSENT: "dim",
}


def show(found: SelfTest, console: Console) -> None:
    """Fault × scenario × backend, the misses with their reasons, the totals."""
    backends = list(dict.fromkeys(row.backend for row in found.rows))
    shown = Table(title="faults injected inside real workers", title_justify="left")
    for name in ("fault", "side", "scenario", *backends):
        shown.add_column(name, overflow="fold")
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found.rows:
        groups[row.fault, row.scenario].append(row)
    for (fault, scenario), rows in groups.items():
        cells = [_cell([row for row in rows if row.backend == name]) for name in backends]
        shown.add_row(fault, str(rows[0].side), scenario, *cells)
    console.print(shown)
    _misses(found, console)
    totals = found.totals
    console.print(f"caught with the right verdict   {totals.detected}")
    console.print(f"wrong tensors explained         {totals.diagnosed}")
    for side, rate in totals.sides.items():
        console.print(f"attributed right, {side:<13} {rate}")
    console.print(f"false alarms                    {totals.alarms}")
    console.print(f"below the detectable bound      {totals.below}")
    console.print(f"not expressible there           {totals.absent}")
    for words in found.broken:
        console.print(Text(f"does not hold: {words}", style="bold red"))
    console.print(f"self-test {'failed' if found.broken else 'passed'} in {found.seconds:.0f} s")


def _cell(rows: Sequence[Row]) -> Text:
    """How the injections ended, and with which verdicts."""
    text = Text()
    endings = Counter(row.ending for row in rows)
    for ending, count in endings.items():
        verdicts = Counter(str(row.verdict) for row in rows if row.ending is ending)
        said = ", ".join(verdicts)
        text.append(f"{'' if not text else '; '}{count} {ending} ({said})", _STYLES[ending])
    return text


def _misses(found: SelfTest, console: Console) -> None:
    for row in found.rows:
        words = complaint(row)
        if words:
            console.print(Text(f"{row.id}: {words}", style="red"), soft_wrap=True)
    for alarm in found.alarms:
        words = f"false alarm {alarm.id}: {alarm.verdict}: {alarm.reason}"
        console.print(Text(words, style="red"), soft_wrap=True)


def complaint(row: Row) -> str:
    """What is not as it should be with a row, "" when nothing."""
    if row.ending is Ending.MISSED:
        size = "" if row.size is None else f", {row.size:.2f} × the detectable error"
        return f"missed{size}: {row.verdict}: {row.reason}"
    if row.ending is Ending.ALARM:
        return f"false alarm: {row.verdict}: {row.reason}"
    if row.ending is not Ending.CAUGHT:
        return ""
    parts = []
    if not row.right_verdict:
        parts.append(f"verdict {row.verdict} instead of {' or '.join(row.expected)}: {row.reason}")
    if row.right_diagnosis is False:
        parts.append(f"diagnosis without “{' or '.join(row.says)}”: {row.diagnosis!r}")
    if row.right_side is False:
        parts.append(f"blamed on {row.attribution}, injected into {row.side}")
    return "; ".join(parts)

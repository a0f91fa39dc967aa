"""The end of a run, and one cell's reasoning, as text."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.errors import ConformanceError
from conformance.records import CellResult, Judged, Results, Thresholds, Verdict
from conformance.report import figures
from conformance.report.findings import Summary, by_group, findings, headline_of
from conformance.report.payload import repro_command
from conformance.report.verdict_styles import LOOKS, ORDER, STYLES, family
from conformance.report.words import Context, number, percent, reasoning, times

_FINDINGS = 12
_OBSERVATIONS = 12
_LOG_LINES = 30
_NEAR = 5
#: What a terminal would obey instead of showing: everything below space but tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """Text of the run's own, harmless to a terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def marked(verdict: Verdict, words: str = "") -> Text:
    look = LOOKS[verdict]
    return Text(f"{look.symbol} {words or verdict.value}", style=STYLES[look.family])


def summary(results: Results, report_path: Path, console: Console) -> None:
    """The matrix of models and backends, what was found, and where the page is."""
    console.print(_matrix(results))
    found = findings(results)
    for finding in found[:_FINDINGS]:
        models = ", ".join(finding.models[:4])
        if len(finding.models) > 4:
            models += f" and {len(finding.models) - 4} more"
        line = marked(finding.verdict)
        line.append(
            shown(f"  {', '.join(finding.backends)} · {models} · {finding.where}"), style="default"
        )
        if finding.blamed:
            line.append(f" · {finding.blamed}", style="default")
        if finding.expected:
            line.append(" (expected)", style="dim")
        console.print(line)
        console.print(Text(shown(f"    {finding.text}"), style="dim"))
    if len(found) > _FINDINGS:
        console.print(f"… and {len(found) - _FINDINGS} more in the report")
    console.print()
    console.print(Text(headline_of(results), style="bold"))
    # Not wrapped: a path that is broken over two lines cannot be clicked or copied.
    console.print(Text(shown(str(report_path))), soft_wrap=True)


def _matrix(results: Results) -> Table:
    groups = by_group(results)
    backends = list(dict.fromkeys(backend for _, backend in groups))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model")
    for backend in backends:
        table.add_column(Text(shown(backend)))
    rows: dict[str, dict[str, Summary]] = defaultdict(dict)
    for (model, backend), total in groups.items():
        rows[model][backend] = total
    for model, totals in rows.items():
        table.add_row(Text(shown(model)), *(_entry(totals.get(backend)) for backend in backends))
    return table


def _entry(total: Summary | None) -> Text:
    if total is None:
        return Text("")
    words = total.word if total.passed == total.total else f"{total.word} of {total.total}"
    return marked(total.verdict, words)


def find(results: Results, wanted: str) -> CellResult:
    """The cell with this id, or the only one whose id contains it.

    Raises ConformanceError naming the near ids when there is none or more than one.
    """
    by_id = {cell.id: cell for cell in results.cells}
    if wanted in by_id:
        return by_id[wanted]
    found = [name for name in by_id if wanted.lower() in name.lower()]
    if len(found) == 1:
        return by_id[found[0]]
    if found:
        more = f" and {len(found) - _NEAR} more" if len(found) > _NEAR else ""
        raise ConformanceError(
            f"{len(found)} cells are like {wanted!r}",
            remedy=f"say more of the id: {', '.join(found[:_NEAR])}{more}",
        )
    near = difflib.get_close_matches(wanted, by_id, n=_NEAR, cutoff=0.4)
    raise ConformanceError(
        f"run {results.run.id} has no cell {wanted!r}",
        remedy=f"near: {', '.join(near)}" if near else "see `conformance list`",
    )


def context(results: Results, cell: CellResult) -> Context:
    """What the cell's reasoning refers to."""
    group = next(
        (g for g in results.groups if (g.model, g.backend) == (cell.model, cell.backend)), None
    )
    same = tuple(
        other
        for other in results.cells
        if (other.model, other.scenario, other.case) == (cell.model, cell.scenario, cell.case)
    )
    return Context(results.environment.thresholds, group, same)


def explanation(results: Results, cell: CellResult) -> list[str]:
    """The cell's id, and the sentences that the page shows too."""
    return [shown(cell.id), *(shown(line) for line in reasoning(cell, context(results, cell)))]


def show(results: Results, cell_id: str, console: Console) -> None:
    """Explain one cell: the same reasoning as on the page, then its evidence."""
    cell = find(results, cell_id)
    about = context(results, cell)
    name, first, *rest = explanation(results, cell)
    console.print(Text(name, style="bold"))
    console.print(Text(f"{LOOKS[cell.verdict].symbol} {first}", style=STYLES[family(cell.verdict)]))
    for line in rest:
        console.print(Text(f"  {line}"))
    _meaning(results, cell, console)
    if cell.observations:
        console.print()
        console.print(_observations(cell.observations, about.thresholds))
    for relation in cell.relations:
        word = marked(
            Verdict.EXACT if relation.holds else Verdict.WRONG,
            "holds" if relation.holds else "broken",
        )
        console.print(word.append(shown(f"  {relation.name}"), style="default"))
    if cell.detail:
        console.print()
        console.print(Text(shown(cell.detail)), soft_wrap=True)
    if (
        about.group is not None
        and about.group.log_tail
        and family(cell.verdict) in ("broken", "doubt")
    ):
        console.print(Text("\nend of the log", style="bold"))
        tail = "\n".join(shown(about.group.log_tail).splitlines()[-_LOG_LINES:])
        console.print(Text(tail, style="dim"), soft_wrap=True)
    console.print(
        Text("\nagain: ", style="bold").append(shown(cell.command), style="default"), soft_wrap=True
    )
    script = shown(repro_command(results.run.id, cell.id))
    console.print(Text("alone: ", style="bold").append(script, style="default"), soft_wrap=True)


def _meaning(results: Results, cell: CellResult, console: Console) -> None:
    scenario = next((s for s in results.scenarios if s.id == cell.scenario), None)
    if scenario is not None and scenario.meaning:
        paragraph = " ".join(scenario.meaning.split("\n\n")[0].split())
        console.print(Text(f"\n{shown(paragraph)}", style="dim"))


def _observations(observations: Sequence[Judged], thresholds: Thresholds) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in (
        "observation",
        "verdict",
        "median",
        "worst",
        "error",
        "floor",
        "detectable",
        "gain",
    ):
        table.add_column(title, justify="left" if title in ("observation", "verdict") else "right")
    ordered = sorted(observations, key=lambda j: (ORDER[j.verdict], -figures.magnitude(j.q_max)))
    for judged in ordered[:_OBSERVATIONS]:
        gain = judged.gain
        table.add_row(
            Text(shown(judged.site)),
            marked(judged.verdict),
            times(judged.q_med, thresholds.k_med),
            times(judged.q_max, thresholds.k_max),
            number(judged.error),
            number(judged.floor),
            "–" if judged.smallest is None else percent(judged.smallest),
            "–" if gain is None else f"{number(gain.g)} ± {number(gain.sigma)}",
        )
    if len(ordered) > _OBSERVATIONS:
        table.add_row(f"… {len(ordered) - _OBSERVATIONS} more", *[""] * 7, style="dim")
    return table

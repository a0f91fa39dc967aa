"""One cell on the terminal: the reasoning, the evidence, and how to run it again."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text as Line

from conformance.errors import ConformanceError
from conformance.records import CellResult, Judged, Limits, Results, Verdict
from conformance.report.figures import causes_first
from conformance.report.payload import repro_command
from conformance.report.render.terminal import blocks, line, shown
from conformance.report.sections.section import Table, columns, verdict_text
from conformance.report.verdict_styles import LOOKS, STYLES, family
from conformance.report.words import Context, number, percent, reasoning, times
from conformance.shortening import few

_OBSERVATIONS = 12
_LOG_LINES = 30
_NEAR = 5


def find(results: Results, text: str) -> CellResult:
    """The cell with this id, or the only one whose id contains it.

    Raises ConformanceError naming the near ids when there is none or more than one.
    """
    [cell] = find_all(results, text, several=False)
    return cell


def find_all(results: Results, text: str, *, several: bool = True) -> list[CellResult]:
    """The same; where `several` may be, all cells of one case that differ in their backend alone.

    A case's own name, as a check has of a file, is meant whole before it is part of another.
    """
    by_id = {cell.id: cell for cell in results.cells}
    if text in by_id:
        return [by_id[text]]
    own = text.removesuffix(".py")
    alike = [cell.id for cell in results.cells if cell.case == own]
    alike = alike or [name for name in by_id if text.lower() in name.lower()]
    cells = [by_id[name] for name in alike]
    cases = {(cell.model, cell.scenario, cell.case) for cell in cells}
    if len(alike) == 1 or (several and len(cases) == 1):
        return cells
    if alike:
        raise ConformanceError(
            f"{len(alike)} cells are like {text!r}",
            remedy=f"say more of the id: {few(alike, _NEAR)}",
        )
    near = difflib.get_close_matches(text, by_id, n=_NEAR, cutoff=0.4)
    raise ConformanceError(
        f"run {results.run.id} has no cell {text!r}",
        remedy=f"near: {', '.join(near)}" if near else "see `conformance list`",
    )


def context(results: Results, cell: CellResult) -> Context:
    """What the cell's reasoning refers to."""
    group = next(
        (g for g in results.groups if (g.model, g.backend) == (cell.model, cell.backend)), None
    )
    siblings = tuple(
        sibling
        for sibling in results.cells
        if (sibling.model, sibling.scenario, sibling.case) == (cell.model, cell.scenario, cell.case)
    )
    return Context(results.environment.thresholds, group, siblings)


def explanation(results: Results, cell: CellResult) -> list[str]:
    """The cell's id, and the sentences that the page shows too."""
    return [shown(text) for text in (cell.id, *reasoning(cell, context(results, cell)))]


def show(results: Results, cell_id: str, console: Console) -> None:
    """Explain one cell, or those of one case on several backends, one after the other: the same
    reasoning as on the page, then its evidence.
    """
    first, *more = find_all(results, cell_id)
    _show(results, first, console)
    for cell in more:
        console.rule(style="dim")
        _show(results, cell, console)


def _show(results: Results, cell: CellResult, console: Console) -> None:
    about = context(results, cell)
    name, first, *sentences = explanation(results, cell)
    console.print(Line(name, style="bold"))
    console.print(Line(f"{LOOKS[cell.verdict].symbol} {first}", style=STYLES[family(cell.verdict)]))
    for sentence in sentences:
        console.print(Line(f"  {sentence}"))
    _meaning(results, cell, console)
    if cell.observations:
        console.print(Line(f"\nin {cell.precision}", style="bold"))
        blocks([_observations(cell.observations, about.thresholds.of(cell.precision))], console)
    if cell.beside and not all(
        observation.verdict.passes for observation in cell.beside.observations
    ):
        limits = about.thresholds.of(cell.beside.precision)
        console.print(Line(f"\nin {cell.beside.precision} besides", style="bold"))
        blocks([_observations(cell.beside.observations, limits)], console)
    for relation in cell.relations:
        holds = (Verdict.EXACT, "holds") if relation.holds else (Verdict.WRONG, "broken")
        words = line(verdict_text(*holds))
        console.print(words.append(shown(f"  {relation.name}"), style="default"))
    if cell.detail:
        console.print()
        console.print(Line(shown(cell.detail)), soft_wrap=True)
    if (
        about.group is not None
        and about.group.log_tail
        and family(cell.verdict) in ("broken", "doubt")
    ):
        console.print(Line("\nend of the log", style="bold"))
        tail = "\n".join(shown(about.group.log_tail).splitlines()[-_LOG_LINES:])
        console.print(Line(tail, style="dim"), soft_wrap=True)
    console.print(
        Line("\nagain: ", style="bold").append(shown(cell.command), style="default"), soft_wrap=True
    )
    script = shown(repro_command(results.run.id, cell.id))
    console.print(Line("alone: ", style="bold").append(script, style="default"), soft_wrap=True)


def _meaning(results: Results, cell: CellResult, console: Console) -> None:
    scenario = next((s for s in results.scenarios if s.id == cell.scenario), None)
    if scenario is not None and scenario.meaning:
        paragraph = " ".join(scenario.meaning.split("\n\n")[0].split())
        console.print(Line(f"\n{shown(paragraph)}", style="dim"))


def _observations(observations: Sequence[Judged], limits: Limits) -> Table:
    figures = ("median", "worst", "error", "floor", "detectable", "gain")
    rows = tuple(
        (
            observation.site,
            verdict_text(observation.verdict),
            times(observation.q_med, limits.k_med),
            times(observation.q_max, limits.k_max),
            number(observation.error),
            number(observation.floor),
            "–" if observation.smallest is None else percent(observation.smallest),
            "–"
            if not observation.gain
            else f"{number(observation.gain.g)} ± {number(observation.gain.sigma)}",
        )
        for observation in causes_first(observations)
    )
    titles = columns("observation", "verdict", *figures, figures=figures)
    return Table(titles, rows, first=_OBSERVATIONS)

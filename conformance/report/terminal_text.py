"""What the terminal shows of a run, and of a cell: reasoning, evidence, commands to rerun it."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.text import Text as Line

from conformance.errors import ConformanceError
from conformance.report.figures import causes_first
from conformance.report.payload import repro_command
from conformance.report.render.terminal import blocks, clean, line
from conformance.report.sections import gaps as gaps_section
from conformance.report.sections.findings import CellsSummary, by_group, headline_of, troubles
from conformance.report.sections.section import Table, Text, columns, verdict_text
from conformance.report.verdict_styles import LOOKS, STYLES, family
from conformance.report.words import Context, number, percent, reasoning, times
from conformance.spec.records import Cell, CellResult, Finding, Judged, Limits, Results, Verdict
from conformance.spec.shortening import few

_OBSERVATIONS = 12
_LOG_LINES = 30
_NEAR = 5

#: A planned or a judged cell.
AnyCell = TypeVar("AnyCell", Cell, CellResult)


def find(results: Results, text: str) -> CellResult:
    """Return the cell with this id, or the only one whose id contains it.

    Raises ConformanceError with similar ids if there is none or more than one.
    """
    [cell] = find_all(results, text, several=False)
    return cell


def find_all(results: Results, text: str, *, several: bool = True) -> list[CellResult]:
    """Like `find`; if `several`, return all cells of one case that differ only in their backend.

    A case's full name, such as a checked file, is preferred to a match inside another name.
    """
    cells = next(filter(None, find_matches(results.cells, text)), [])
    cases = {(cell.model, cell.scenario, cell.case) for cell in cells}
    if len(cells) == 1 or (several and len(cases) == 1):
        return cells
    if cells:
        raise ConformanceError(
            f"{len(cells)} cells are like {text!r}",
            remedy=f"say more of the id: {few((cell.id for cell in cells), _NEAR)}",
        )
    names = [cell.id for cell in results.cells]
    near = difflib.get_close_matches(text, names, n=_NEAR, cutoff=0.4)
    raise ConformanceError(
        f"run {results.run.id} has no cell {text!r}",
        remedy=f"near: {', '.join(near)}" if near else f"it has {few(names, _NEAR) or 'none'}",
    )


def find_matches(cells: Sequence[AnyCell], text: str) -> Iterator[list[AnyCell]]:
    """Yield the cells of this id, of this case, and with this part in their id: those that match
    better first.
    """
    yield [cell for cell in cells if cell.id == text]
    yield [cell for cell in cells if cell.case == text.removesuffix(".py")]
    yield [cell for cell in cells if text.lower() in cell.id.lower()]


def context(results: Results, cell: CellResult) -> Context:
    """Collect what the cell's reasoning refers to."""
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
    """Return the cell's id and the sentences that the page shows too."""
    return [clean(text) for text in (cell.id, *reasoning(cell, context(results, cell)))]


def show(
    results: Results, cell_id: str, console: Console, where: Sequence[str] = (), folder: str = ""
) -> None:
    """Explain one cell, or one case's cells on several backends: reasoning, evidence, commands.

    `where` are the arguments that find the run from here. `folder` is where the cell's own command
    was typed, "" for the current one.
    """
    there = f"cd {shlex.quote(folder)} && " if folder else ""
    for index, cell in enumerate(find_all(results, cell_id)):
        if index:
            console.rule(style="dim")
        _show(results, cell, console)
        script = repro_command(results.run.id, cell.id, where)
        for begin, text in (("\nagain: ", there + cell.command), ("alone: ", script)):
            words = Line(begin, style="bold").append(clean(text), style="default")
            console.print(words, soft_wrap=True)


def _show(results: Results, cell: CellResult, console: Console) -> None:
    about = context(results, cell)
    name, first, *sentences = explanation(results, cell)
    console.print(Line(name, style="bold"))
    console.print(Line(f"{LOOKS[cell.verdict].symbol} {first}", style=STYLES[family(cell.verdict)]))
    for sentence in sentences:
        console.print(Line(f"  {sentence}"))
    scenario = next((s for s in results.scenarios if s.id == cell.scenario), None)
    if scenario is not None and scenario.meaning:
        paragraph = " ".join(scenario.meaning.split("\n\n")[0].split())
        console.print(Line(f"\n{clean(paragraph)}", style="dim"))
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
        console.print(words.append(clean(f"  {relation.name}"), style="default"))
    if cell.detail:
        console.print()
        console.print(Line(clean(cell.detail)), soft_wrap=True)
    log = about.group.log_tail if about.group else ""
    if log and family(cell.verdict) in ("broken", "doubt"):
        console.print(Line("\nend of the log", style="bold"))
        tail = "\n".join(clean(log).splitlines()[-_LOG_LINES:])
        console.print(Line(tail, style="dim"), soft_wrap=True)


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


_TROUBLES = 12


def summary(results: Results, report_path: Path, console: Console) -> None:
    """Print the matrix of models and backends, known gaps, new findings, and the page's path."""
    blocks([_matrix(results), *filter(None, [gaps_section.brief(results)])], console)
    listed = troubles(results)
    for trouble in listed[:_TROUBLES]:
        models = few(trouble.models, 4)
        words = line(verdict_text(trouble.verdict))
        words.append(
            clean(f"  {', '.join(trouble.backends)} · {models} · {trouble.where}"), style="default"
        )
        if trouble.blamed:
            words.append(f" · {trouble.blamed}", style="default")
        if trouble.finding is not Finding.UNEXPECTED:
            words.append(f" ({trouble.finding})", style="dim")
        console.print(words)
        console.print(Line(clean(f"    {trouble.text}"), style="dim"))
    if len(listed) > _TROUBLES:
        console.print(f"… and {len(listed) - _TROUBLES} more in the report")
    console.print()
    console.print(Line(headline_of(results), style="bold"))
    if selection := results.selection.words:
        console.print(Line(clean(selection)))
    # Not wrapped: a path broken over two lines cannot be clicked or copied.
    console.print(Line(clean(str(report_path))), soft_wrap=True)


def _matrix(results: Results) -> Table:
    groups = by_group(results)
    backends = list(dict.fromkeys(backend for _, backend in groups))
    models = dict.fromkeys(model for model, _ in groups)
    rows = tuple(
        (model, *(_total(groups.get((model, backend))) for backend in backends)) for model in models
    )
    return Table(columns("model", *backends), rows, first=len(rows))


def _total(total: CellsSummary | None) -> str | Text:
    if total is None:
        return ""
    if total.new or total.findings.get(Finding.NUMERICS):
        return verdict_text(total.verdict, total.word)
    return verdict_text(Verdict.MATCH if total.passed else Verdict.SKIPPED, total.word)

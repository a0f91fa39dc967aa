"""`conformance repro`: export one cell as a script and as an issue for upstream."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.commands.repro import UpstreamProject
from conformance.commands.shared import engines, selecting
from conformance.commands.shared.options import Choice, Folder, Manifest, Reports, note
from conformance.errors import ConformanceError
from conformance.spec.scenario import discover

if TYPE_CHECKING:
    from conformance.runner.store import RunPlan
    from conformance.spec.records import CellResult, Column, Model, Results
    from conformance.spec.scenario import Places, Scenario


def repro(
    *,
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    name: Annotated[str, typer.Option("--run", help="A run's name, or `latest`.")] = "latest",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder that gets the script.")
    ] = Path(),
    issue: Annotated[
        bool, typer.Option("--issue", help="Write a text for upstream as well, with the script.")
    ] = False,
    to: Annotated[
        UpstreamProject | None,
        typer.Option(help="Whom the text is for, where the cell's attribution does not say."),
    ] = None,
    scenarios: Folder,
    manifest: Manifest,
    trust: Annotated[
        bool, typer.Option("--trust", help="The script may start what only the run's files name.")
    ] = False,
    reports: Reports,
) -> None:
    """Write a script that reproduces one cell's verdict.

    It holds the trace, its meaning in plain PyTorch and the case's data. It needs this package
    installed. It exits with 0 when the cell passes, with 1 when it fails as it did in the run, with
    3 when it fails in another way.

    Example: `conformance repro 'steering[llama-vllm-pp1-middle-small-one]'`
    """
    engines.require_engine()
    from conformance.commands.repro import issue as issues
    from conformance.commands.repro import script
    from conformance.report import terminal_text
    from conformance.runner.planning.trust import Executed

    folder = selecting.open_run(reports, name, cell)
    results = folder.results()
    choice = Choice(manifest=manifest, scenarios=scenarios)
    known = partial(selecting.require_known, path=folder.path, choice=choice, trust=trust)
    if folder.is_check:
        if issue:
            raise ConformanceError("a text for upstream is written of a run's cell, not of a check")
        answers = [script.script_of(folder, one) for one in terminal_text.find_all(results, cell)]
        for answer in answers:
            known(answer.executed())
        for answer in answers:
            script_name = script.script_name(answer.cell)
            _write(output / script_name, answer.text(script_name))
            for data, path in answer.beside().items():
                target = output / data
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
                note(f"it reads {target}")
        return
    result = script.hide_folders(terminal_text.find(results, cell))
    scenario = _find_scenario(results, result, scenarios)
    model, column = _find_place(folder.plan(), result)
    recorded = script.collect_facts(results, result, model, column)
    known(Executed((recorded.model,), tuple(recorded.columns)))
    path = output / script.script_name(result)
    text = script.text(result, recorded, scenario, file=path.name)
    _write(path, text)
    if issue:
        project = to or issues.addressee(result, column)
        written = path.with_suffix(".md")
        words = issues.text(results, result, model, project, text, path.name)
        written.write_text(words, encoding="utf-8")
        typer.echo(written)


def _write(path: Path, text: str) -> None:
    """Write a script, and print how to run it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(path)
    note(f"run it with: {sys.executable} {path}")


def _find_scenario(results: Results, cell: CellResult, folders: Places) -> Scenario:
    """Return the scenario. Raises ConformanceError if it is not the one that the run used."""
    scenario = discover(folders).get(cell.scenario)
    if scenario is None:
        remedy = "name the folder of its file too: --scenarios built-in --scenarios FOLDER"
        raise ConformanceError(f"there is no scenario {cell.scenario!r}", remedy=remedy)
    if cell.case not in scenario.cases:
        raise ConformanceError(
            f"{cell.scenario!r} has no case {cell.case!r} any more",
            path=scenario.path,
            remedy=f"run again: {cell.command}",
        )
    now = scenario.info()
    sources = [(i.trace_source, i.reference_source) for i in results.scenarios if i.id == now.id]
    if sources != [(now.trace_source, now.reference_source)]:
        raise ConformanceError(
            f"the scenario {scenario.name!r} is not what it was in run {results.run.id}",
            path=scenario.path,
            remedy=f"run the cell again: {cell.command}",
        )
    return scenario


def _find_place(plan: RunPlan, cell: CellResult) -> tuple[Model, Column]:
    """Return the cell's model and column. Raises ConformanceError for a plan of another run."""
    model = next((model for model in plan.models if model.id == cell.model), None)
    column = next((column for column in plan.columns if column.id == cell.backend), None)
    if model is None or column is None:
        raise ConformanceError(
            f"the plan of run {plan.run} has no {cell.model!r} on {cell.backend!r}",
            remedy="its plan.json and results.json are of two runs: judge it again",
        )
    return model, column

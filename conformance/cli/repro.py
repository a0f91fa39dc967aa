"""`conformance repro`: one cell as a script that runs without the harness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import selecting
from conformance.cli.options import REPORTS, Reports, err
from conformance.errors import ConformanceError


def repro(
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    name: Annotated[str, typer.Option("--run", help="A run's name, or `latest`.")] = "latest",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder that gets the script.")
    ] = Path(),
    reports: Reports = REPORTS,
) -> None:
    """Write a script that shows one cell's verdict again without the harness.

    It needs torch, transformers, nnsight and (on vLLM) vllm only, and exits with 0 when the
    cell passes, with 1 when it fails as it did in the run, with 3 when it fails otherwise.
    Through the stage relay it needs this package too: the relay is what it tests.

    Example: `conformance repro 'steering[llama-vllm-pp1-middle-small-one]'`
    """
    from conformance.checkpoints import cache_folder, locate
    from conformance.report import terminal
    from conformance.repro import script
    from conformance.scenario import discover

    folder = selecting.open_run(reports, name)
    results, plan = folder.results(), folder.plan()
    found = terminal.find(results, cell)
    scenario = discover(Path(plan.scenarios)).get(found.scenario)
    model = next(one for one in plan.models if one.id == found.model)
    checkpoint = locate(model, cache_folder())
    if scenario is None:
        raise ConformanceError(
            f"there is no scenario {found.scenario!r} any more", path=Path(plan.scenarios)
        )
    if checkpoint is None:
        raise ConformanceError(
            f"the checkpoint of {found.model!r} is not in the cache",
            path=cache_folder(),
            remedy=f"make it again: {found.command}",
        )
    case = next((one for one in scenario.expand(checkpoint.layers) if one.name == found.case), None)
    if case is None:
        raise ConformanceError(
            f"{found.scenario!r} has no case {found.case!r} any more",
            path=scenario.path,
            remedy=f"run again: {found.command}",
        )
    output.mkdir(parents=True, exist_ok=True)
    path = output / script.script_name(found)
    typer.echo(script.write(results, found, model, scenario, case, checkpoint, path))
    err.print(f"run it with: python {path}", markup=False, highlight=False, soft_wrap=True)

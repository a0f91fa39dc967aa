"""`conformance repro`: one cell as a script that runs without the harness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.cli import selecting
from conformance.cli.options import REPORTS, Reports, err
from conformance.errors import ConformanceError

if TYPE_CHECKING:
    from conformance.checkpoints import Checkpoint
    from conformance.records import CellResult, Model, Results
    from conformance.store import RunFolder


def repro(
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    name: Annotated[str, typer.Option("--run", help="A run's name, or `latest`.")] = "latest",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder that gets the script.")
    ] = Path(),
    scenarios: Annotated[
        Path | None,
        typer.Option("--scenarios", help="The scenario files; by default those of the run."),
    ] = None,
    reports: Reports = REPORTS,
) -> None:
    """Write a script that shows one cell's verdict again without the harness.

    It needs torch, transformers, nnsight and (on vLLM) vllm only, and exits with 0 when the
    cell passes, with 1 when it fails as it did in the run, with 3 when it fails otherwise.
    Through the stage relay it needs this package too: the relay is what it tests.

    Example: `conformance repro 'steering[llama-vllm-pp1-middle-small-one]'`
    """
    from conformance.report import terminal
    from conformance.repro import script
    from conformance.scenario import discover

    folder = selecting.open_run(reports, name)
    results, plan = folder.results(), folder.plan()
    found = terminal.find(results, cell)
    files = scenarios or Path(plan.scenarios)
    scenario = discover(files).get(found.scenario)
    model = next(one for one in plan.models if one.id == found.model)
    checkpoint = _checkpoint(folder, results, model, found)
    if scenario is None:
        raise ConformanceError(
            f"there is no scenario {found.scenario!r} any more",
            path=files,
            remedy="name the folder of the scenario files: --scenarios",
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


def _checkpoint(folder: RunFolder, results: Results, model: Model, cell: CellResult) -> Checkpoint:
    """The weights that the cell ran on, where they still are; else the model's in the cache."""
    from conformance.checkpoints import Checkpoint, cache_folder, locate
    from conformance.records import Job
    from conformance.store import upgraded
    from conformance.store.files import read_record

    info = next(one for one in results.models if one.id == model.id)
    path = folder.group_folder(cell.model, cell.backend).path / "job.json"
    job = read_record(Job, path, upgrade=upgraded)
    if job is not None and job.checkpoint.is_dir() and info.layers:
        return Checkpoint(
            path=job.checkpoint,
            digest=info.digest,
            source=info.source,
            architecture=info.architecture,
            layers=info.layers,
            width=info.width,
        )
    found = locate(model, cache_folder())
    if found is None or (info.digest and found.digest != info.digest):
        raise ConformanceError(
            f"the checkpoint that {cell.model!r} had in the run is no longer there",
            path=cache_folder(),
            remedy=f"run the cell again: {cell.command}",
        )
    return found

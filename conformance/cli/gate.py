"""`conformance gate`: a run held against known.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import selecting
from conformance.cli.options import (
    CALIBRATION,
    ENVIRONMENTS,
    KNOWN,
    MANIFEST,
    REPORTS,
    SCENARIOS,
    Backends,
    Env,
    Environments,
    Expectations,
    Expression,
    Folder,
    Manifest,
    Models,
    Reports,
    Tier,
    out,
)


def gate(
    name: Annotated[str, typer.Argument(help="A stored run, or `latest`; none: run now.")] = "",
    model: Models = [],  # noqa: B006
    backend: Backends = [],  # noqa: B006
    expression: Expression = "",
    tier: Tier = "default",
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", min=1, help="Groups at a time; default: cores.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a cell may take.")] = 60.0,
    load_timeout: Annotated[float, typer.Option(min=1, help="Seconds an engine may load.")] = 300.0,
    expectations: Expectations = KNOWN,
    strict: Annotated[bool, typer.Option(help="Flaky cells close the gate too.")] = False,
    repeats: Annotated[
        int | None,
        typer.Option(min=0, help="Repetitions of what was unexpected; default: 2, stored run: 0."),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="The files' folder; default: RUN/gate.")] = None,
    env: Env = [],  # noqa: B006
    environments: Environments = ENVIRONMENTS,
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Say whether a run is as expected: every cell passes, or known.yaml says why not.

    Exits 0 when all is as expected, 1 when not, 2 for an entry that matches nothing or an
    incomplete run, 3 when the harness itself failed. Writes summary.md, junit.xml, badge.json.
    """
    from functools import partial

    from conformance import calibration
    from conformance import gate as gates
    from conformance.checkpoints import cache_folder
    from conformance.report import render
    from conformance.report.progress import Progress
    from conformance.runner import Limits
    from conformance.scenario import discover

    limits = Limits(cell=timeout, load=load_timeout)
    known, every = selecting.known(expectations, manifest, scenarios)
    if name:
        folder = selecting.open_run(reports, name)
    else:
        gates.refuse_unmatched(known, every)
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
        selecting.executed(folder, scenarios, limits, jobs, known=known)
    rounds = (0 if name else 2) if repeats is None else repeats
    with Progress(folder.plan().cells, out) as progress:
        again = partial(
            gates.repeat,
            folder,
            scenarios=discover(scenarios),
            rounds=rounds,
            cache=cache_folder(),
            limits=limits,
            on_event=progress,
        )
        decision = gates.check(
            folder,
            known,
            every,
            selecting.today(),
            calibrated=calibration.thresholds(calibration.read(CALIBRATION)),
            strict=strict,
            repeat=again if rounds else None,
        )
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
    gates.write(decision, to or folder.path / "gate", step_summary=step_summary)
    if step_summary:
        typer.echo(gates.headline(decision))
    elif out.is_terminal:
        render.terminal.document(gates.document(decision), out)
    else:
        typer.echo(render.markdown.document(gates.document(decision)))
    raise typer.Exit(decision.exit_code)

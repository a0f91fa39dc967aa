"""`conformance gate`: compare a run with known.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import engines, selecting
from conformance.cli.options import (
    Choice,
    Expectations,
    Reports,
    RunOptions,
    Trust,
    out,
)
from conformance.planning import selection


def gate(
    *,
    choice: Choice,
    running: RunOptions,
    name: Annotated[str, typer.Argument(help="A stored run, or `latest`; none: run now.")] = "",
    expectations: Expectations,
    strict: Annotated[bool, typer.Option(help="Flaky cells close the gate too.")] = False,
    repeats: Annotated[
        int | None,
        typer.Option(min=0, help="Repetitions of what was unexpected; default: 2, stored run: 0."),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="The files' folder; default: RUN/gate.")] = None,
    trust: Trust = False,
    reports: Reports,
) -> None:
    """Say whether a run is as expected: every cell passes, or known.yaml explains why not.

    Exits 0 when all is as expected, 1 when not, 2 for an entry that matches nothing or an
    incomplete run, 3 when the harness itself failed. Writes summary.md, junit.xml, badge.json.
    """
    rounds = (0 if name else 2) if repeats is None else repeats
    if rounds or not name:
        engines.needed()

    from functools import partial

    from conformance import gate as gates
    from conformance.checkpoints import cache_folder
    from conformance.expectations.entries import refuse_unmatched
    from conformance.planning.trust import of_plan
    from conformance.report import render
    from conformance.report.progress import Progress
    from conformance.scenario import discover

    known = selection.expected(expectations)
    every = selection.every_cell(choice.manifest, choice.scenarios)
    if name:
        folder = selecting.open_run(reports, name)
        if repeats:
            planned = of_plan(folder.plan())
            selecting.require_known(planned, folder.path, choice, trust=trust)
    else:
        refuse_unmatched(known, every)
        folder = selecting.new_run(reports, choice, running)
        selecting.executed(folder, choice.scenarios, running, known=known)
    check = partial(gates.check, folder, known, every, selecting.today(), strict=strict)
    if rounds:
        from conformance.gate.repeat import repeat

        with Progress(folder.plan().cells, out) as progress:
            again = partial(
                repeat,
                folder,
                scenarios=discover(choice.scenarios),
                rounds=rounds,
                cache=cache_folder(),
                limits=running.limits,
                on_event=progress,
            )
            decision = check(repeat=again)
    else:
        decision = check()
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
    gates.write(decision, to or folder.path / "gate", step_summary=step_summary)
    if step_summary:
        typer.echo(gates.headline(decision))
    else:
        render.terminal.document(gates.document(decision), out)
    raise typer.Exit(decision.exit_code)

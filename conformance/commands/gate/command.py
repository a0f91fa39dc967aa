"""`conformance gate` and `known update`: compare a run with known.yaml, and maintain it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from conformance.commands.shared import engines, selecting
from conformance.commands.shared.options import (
    Choice,
    Expectations,
    Folder,
    Manifest,
    Reports,
    Run,
    RunOptions,
    Trust,
    note,
    out,
)
from conformance.errors import ExitCode
from conformance.runner.planning import selection
from conformance.spec.checkpoints import cache_folder
from conformance.spec.scenario import discover


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
        engines.require_engine()

    from conformance.commands.gate import decide, files
    from conformance.judge.expectations import load_expectations
    from conformance.judge.expectations.entries import refuse_unmatched
    from conformance.report import render
    from conformance.report.progress import Progress
    from conformance.runner.planning.trust import of_plan

    known = load_expectations(expectations)
    every = selection.every_cell(choice.manifest, choice.scenarios)
    if name:
        folder = selecting.open_run(reports, name)
        if repeats:
            selecting.require_known(of_plan(folder.plan()), folder.path, choice, trust=trust)
    else:
        refuse_unmatched(known, every)
        folder = selecting.new_run(reports, choice, running)
        selecting.execute_run(folder, choice.scenarios, running, known=known)
    check = partial(decide.check, folder, known, every, selecting.today(), strict=strict)
    if rounds:
        from conformance.commands.gate.repeat import repeat

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
    files.write(decision, to or folder.path / "gate", step_summary=step_summary)
    if step_summary:
        typer.echo(files.headline(decision))
    else:
        render.terminal.document(files.document(decision), out)
    raise typer.Exit(decision.exit_code)


def update_known(
    *,
    name: Run = "latest",
    write: Annotated[bool, typer.Option(help="Write the file instead of a diff.")] = False,
    expectations: Expectations,
    manifest: Manifest,
    scenarios: Folder,
    reports: Reports,
) -> None:
    """Propose the smallest edit of known.yaml that makes a run as expected, as a diff.

    Exits 1 when an edit is proposed and not written.
    """
    from conformance.judge.expectations import difference, load_expectations, update
    from conformance.runner.store.files import write_text

    known = load_expectations(expectations)
    every = selection.every_cell(manifest, scenarios)
    text = expectations.read_text("utf-8") if expectations.is_file() else "known: []\n"
    results = selecting.open_run(reports, name).results()
    updated = update(text, known, results, every, selecting.today())
    for line in (*updated.changes, *(f"left for you: {line}" for line in updated.unsolved)):
        note(line)
    if write:
        write_text(expectations, updated.text)
    else:
        typer.echo(difference(text, updated.text, expectations), nl=False)
        raise typer.Exit(ExitCode.UNEXPECTED if updated.changes else ExitCode.OK)

"""`conformance selftest`: inject faults on purpose."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from conformance.commands.shared import engines
from conformance.commands.shared.options import (
    Backends,
    Folder,
    Manifest,
    Models,
    Reports,
    err,
    note,
    out,
    say,
)
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning import plan
from conformance.runner.store import retention
from conformance.spec.checkpoints import cache_folder
from conformance.spec.records import Thresholds, widened


def selftest(
    *,
    model: Models = [],  # noqa: B006
    backend: Backends = [],  # noqa: B006
    expression: Annotated[
        str, typer.Option("-k", help="Only faults whose id matches: words with and, or, not.")
    ] = "",
    quick: Annotated[
        bool, typer.Option(help="Two tiny models and the most telling faults.")
    ] = False,
    again: Annotated[
        str, typer.Option(help="Judge this stored self-test anew, without engines.")
    ] = "",
    resume: Annotated[
        str, typer.Option(help="Go on with this self-test (latest), given its other options.")
    ] = "",
    blind: Annotated[
        str, typer.Option(help="Judge with this gate broken on purpose: must exit with 1.")
    ] = "",
    widen: Annotated[
        float,
        typer.Option(min=1.0, help="Judge with limits so many times as wide: must exit with 1."),
    ] = 1.0,
    gates: Annotated[
        bool,
        typer.Option(
            "--controls",
            help="With --again: each gate of the judge broken in turn, and all limits × 20.",
        ),
    ] = False,
    sensitivity: Annotated[
        bool,
        typer.Option(help="Measure the detection limits of every case of every model (minutes)."),
    ] = False,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1)] = None,
    manifest: Manifest,
    scenarios: Folder,
    reports: Reports,
) -> None:
    """Inject known faults into real workers and check that they are detected and named.

    Exits 0 when they are and nothing sound is flagged, 1 otherwise, 3 when the harness failed. With
    --controls it exits 0 when the intact judge passes and each broken gate makes it fail.
    """
    if gates and not again:
        raise ConformanceError(
            "--controls judges a stored self-test", remedy="name it: --again latest --controls"
        )
    if again and resume:
        raise ConformanceError("--again observes nothing, --resume does", remedy="give one of them")
    engines.require_engine()
    from conformance.commands.selftest import run
    from conformance.commands.selftest.show import Lines, show_controls
    from conformance.commands.selftest.show import show as show_table
    from conformance.judge.expectations import load_expectations
    from conformance.spec.inputs import manifest as manifests

    known = manifests.load(manifest)
    gaps = load_expectations().entries
    models = model or list(run.default_models(quick=quick))
    backends = plan.choose(known.backends, backend, "backend")
    request = run.SelfTestRequest(
        models=plan.choose(known.models, models, "model"),
        backends=backends if backend else run.default_backends(backends),
        scenarios=tuple(scenarios),
        reports=reports,
        thresholds=widened(Thresholds(), widen),
        expression=expression,
        quick=quick,
        jobs=jobs or os.cpu_count() or 1,
        again=again,
        resume=resume,
        blind=blind,
        gaps=gaps,
        sensitivity=sensitivity,
        general=None if model else run.MODELS,
    )
    if gates:
        held = show_controls(run.controlled(request), out)
        raise typer.Exit(ExitCode.OK if held else ExitCode.UNEXPECTED)
    folder, table = run.run(request, cache_folder(), Lines(err))
    if table is None:
        note(f"go on with it: conformance selftest --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    show_table(table, out)
    say(f"{folder.path / 'index.html'}")
    retention.sweep_observations(cache_folder())
    raise typer.Exit(run.exit_code(table))

"""`conformance calibrate`: thresholds from honest runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from conformance import plan
from conformance.cli import selecting
from conformance.cli.options import (
    CALIBRATION,
    MANIFEST,
    REPORTS,
    SCENARIOS,
    Folder,
    Manifest,
    Models,
    Reports,
    Tier,
    err,
    out,
)
from conformance.errors import ExitCode
from conformance.records import Calibration


def calibrate(
    name: Annotated[
        str,
        typer.Argument(help="A stored run to calibrate on; without it, the clean set is run."),
    ] = "",
    model: Models = [],  # noqa: B006
    tier: Tier = "default",
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", min=1, help="Models at a time; default: cores.")
    ] = None,
    path: Annotated[Path, typer.Option("--write", help="Where the thresholds go.")] = CALIBRATION,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a case may take.")] = 120.0,
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Measure how far apart honest bf16 runs are, and set the thresholds by it.

    The clean set is every model in four variants, with other prompts and (tiny models)
    other weights, on all scenarios. No engine that is tested takes part: each case is
    computed in float32 and in several honest bf16 ways, and each of those ways is held out
    in turn and measured by the noise floor of the others. A threshold is the split-conformal
    quantile of what they reach that accepts one false alarm in 300 cases: one quantile for
    each model, of them the largest, never above the caps of 1.5 (median token) and 3 (worst
    token). A model that needs more is named here and on the page, and its cells are drift.

    The result goes to `calibration.json` with date, versions and a digest. `conformance run`
    reads it, and refuses it when it was edited by hand; the page shows it. Needs at least 300
    clean cases. After Ctrl-C the old file stands, and the same command goes on.

    Examples: `conformance calibrate`, `conformance calibrate -j 1 --write /tmp/tried.json`,
    `conformance calibrate latest`, then `conformance judge latest --calibration FILE`.
    """
    from conformance import calibration, execution
    from conformance import manifest as manifests
    from conformance.calibration import measuring
    from conformance.checkpoints import cache_folder
    from conformance.report import calibration_section
    from conformance.report.render import terminal
    from conformance.runner import Limits
    from conformance.scenario import discover

    known = discover(scenarios)
    found: Calibration | None = None
    try:
        if name:
            run_folder, device = selecting.open_run(reports, name), execution.device()
            found = measuring.of_stored(run_folder, known, device, out)
        else:
            models = plan.choose(manifests.load(manifest).models, model, "model")
            found = measuring.measure(
                models if model else plan.in_tier(models, tier),
                known,
                reports=reports,
                folder=scenarios.resolve(),
                cache=cache_folder(),
                jobs=jobs or os.cpu_count() or 1,
                limits=Limits(cell=timeout),
                device=execution.device(),
                console=out,
            )
    except KeyboardInterrupt:
        pass  # said below, as when the gathering was interrupted
    if found is None:
        err.print(f"interrupted; {path} is as it was. The same command goes on.")
        raise typer.Exit(ExitCode.INTERRUPTED)
    calibration.write(path, found)
    terminal.blocks([calibration_section.section(found)], out)
    out.print(str(path), markup=False, soft_wrap=True)

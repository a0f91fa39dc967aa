"""The verbs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from conformance import plan
from conformance.errors import ConformanceError, ExitCode
from conformance.records import Backend, Calibration, Cell, Model, Thresholds

if TYPE_CHECKING:
    from conformance.store import RunFolder

app = typer.Typer(
    name="conformance",
    help="Find out where an nnsight intervention differs between transformers and vLLM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)

Models = Annotated[
    list[str], typer.Option("-m", "--model", help="A model of models.yaml; again for more.")
]
Backends = Annotated[
    list[str],
    typer.Option(
        "-b", "--backend", help="A column; again for more. Default: those marked default."
    ),
]
Expression = Annotated[
    str,
    typer.Option("-k", help="Only cells whose id matches: words with and, or, not, ( )."),
]
Tier = Annotated[str, typer.Option(help="A named selection of models.")]
Manifest = Annotated[Path, typer.Option("--models", help="The manifest of models and backends.")]
Folder = Annotated[Path, typer.Option("--scenarios", help="The folder of scenario files.")]
Reports = Annotated[Path, typer.Option(help="Where runs are kept.")]
Run = Annotated[str, typer.Argument(help="A run's name under reports/, or `latest`.")]

MANIFEST = Path("models.yaml")
SCENARIOS = Path("scenarios")
REPORTS = Path("reports")
CALIBRATION = Path("calibration.json")


@app.command()
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
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Run the matrix: observe every cell, judge it, write the report.

    Exits 0 when all is as expected, 1 when a cell failed, 3 when the harness itself did.

    Examples: `conformance run`, `conformance run -m llama -b vllm-pp2 -k steering`,
    `conformance run --resume latest`.
    """
    from conformance import calibration, execution
    from conformance.checkpoints import cache_folder
    from conformance.report.progress import Progress
    from conformance.report.terminal import summary
    from conformance.runner import Limits
    from conformance.scenario import discover

    found = discover(scenarios)
    workers = jobs or os.cpu_count() or 1
    if resume:
        folder = _open(reports, resume)
    else:
        calibrated = calibration.read(CALIBRATION)
        models, backends, cells = _chosen(manifest, scenarios, model, backend, expression, tier)
        folder = execution.begin(
            reports,
            models,
            backends,
            cells,
            scenarios=scenarios.resolve(),
            thresholds=calibration.thresholds(calibrated),
            calibration=calibrated,
            jobs=workers,
        )
    with Progress(folder.plan().cells, out) as progress:
        finished = execution.execute(
            folder,
            found,
            cache=cache_folder(),
            limits=Limits(cell=timeout, load=load_timeout),
            jobs=workers,
            on_event=progress,
        )
    if finished.results is None or finished.page is None:
        err.print(f"interrupted; go on with: conformance run --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    summary(finished.results, finished.page, out)
    raise typer.Exit(finished.results.footer.exit_code)


@app.command("list")
def list_cells(
    model: Models = [],  # noqa: B006
    backend: Backends = [],  # noqa: B006
    expression: Expression = "",
    tier: Tier = "default",
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
) -> None:
    """List the cells that `run` would run, one id a line; counts go to standard error."""
    models, backends, cells = _chosen(manifest, scenarios, model, backend, expression, tier)
    for cell in cells:
        typer.echo(cell.id)
    err.print(f"{len(models)} models × {len(backends)} backends: {len(cells)} cells")


@app.command()
def show(
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    name: Annotated[str, typer.Option("--run", help="A run's name, or `latest`.")] = "latest",
    reports: Reports = REPORTS,
) -> None:
    """Explain one cell's verdict: the same reasoning as in the report."""
    from conformance.report import terminal

    terminal.show(_open(reports, name).results(), cell, out)


@app.command()
def judge(
    name: Run = "latest",
    k_med: Annotated[float | None, typer.Option(help="Threshold on the median ratio.")] = None,
    k_max: Annotated[float | None, typer.Option(help="Threshold on the largest ratio.")] = None,
    calibrated: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            help="Thresholds of this file; without it, those that the run began with.",
        ),
    ] = None,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Judge a stored run again, without engines, perhaps with other thresholds.

    Examples: `conformance judge latest --k-max 1.8`,
    `conformance judge latest --calibration calibration.json`.
    """
    from conformance import calibration, execution
    from conformance.report.terminal import summary
    from conformance.scenario import discover

    folder = _open(reports, name)
    plan_of_run = folder.plan()
    found, thresholds = plan_of_run.calibration, plan_of_run.thresholds
    if calibrated is not None:
        found = calibration.read(calibrated)
        if found is None:
            raise ConformanceError("there is no such file", path=calibrated)
        thresholds = calibration.thresholds(found)
    if k_med is not None or k_max is not None:
        found = None
        thresholds = replace(
            thresholds,
            k_med=thresholds.k_med if k_med is None else k_med,
            k_max=thresholds.k_max if k_max is None else k_max,
            source="command line",
        )
    results = execution.judge(folder, discover(scenarios), thresholds, found)
    page = execution.publish(folder, results)
    summary(results, page, out)
    raise typer.Exit(results.footer.exit_code)


@app.command()
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

    The clean set is every model in three variants, with other prompts and (tiny models)
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
    from conformance.report import calibrated
    from conformance.runner import Limits
    from conformance.scenario import discover

    known = discover(scenarios)
    found: Calibration | None = None
    try:
        if name:
            run_folder, device = _open(reports, name), execution.device()
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
    calibrated.show(found, path, out)


@app.command()
def report(name: Run = "latest", reports: Reports = REPORTS) -> None:
    """Write the page of a judged run anew and print its path."""
    from conformance.report import html

    folder = _open(reports, name)
    typer.echo(html.write(folder.results(), folder.path))


@app.command()
def doctor(
    deep: Annotated[bool, typer.Option(help="Check every checkpoint's digest.")] = False,
    manifest: Manifest = MANIFEST,
) -> None:
    """Say what is installed, which backends can run, and what mends what is missing."""
    from conformance import doctor as examine
    from conformance import manifest as manifests
    from conformance.checkpoints import cache_folder

    findings = examine.diagnose(manifests.load(manifest), cache_folder(), deep=deep)
    examine.render(findings, out)
    raise typer.Exit(ExitCode.OK if all(f.ok for f in findings) else ExitCode.UNEXPECTED)


@app.command()
def selftest(
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
    blind: Annotated[
        str, typer.Option(help="Judge with this gate broken on purpose: must exit with 1.")
    ] = "",
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1)] = None,
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Inject known faults inside real workers and see that they are found and named.

    Exits 0 when they are and nothing sound is flagged, 1 otherwise, 3 when the harness failed.
    """
    from conformance import manifest as manifests
    from conformance.checkpoints import cache_folder
    from conformance.selftest import command
    from conformance.selftest.progress import Lines
    from conformance.selftest.show import show as show_table

    known = manifests.load(manifest)
    models = model or list(command.QUICK_MODELS if quick else command.MODELS)
    backends = plan.choose(known.backends, backend, "backend")
    asked = command.Asked(
        models=plan.choose(known.models, models, "model"),
        backends=backends if backend else command.default_backends(backends),
        scenarios=scenarios,
        reports=reports,
        thresholds=_thresholds(),
        expression=expression,
        quick=quick,
        jobs=jobs or os.cpu_count() or 1,
        again=again,
        blind=blind,
    )
    folder, found = command.run(asked, cache_folder(), Lines(err))
    if found is None:
        raise typer.Exit(ExitCode.INTERRUPTED)
    show_table(found, out)
    out.print(f"{folder.path / 'index.html'}", soft_wrap=True)
    raise typer.Exit(command.exit_code(found))


@app.command()
def schema() -> None:
    """Print the JSON schema of results.json."""
    from conformance.report.schema import results_schema

    typer.echo(results_schema())


def _chosen(
    manifest: Path,
    scenarios: Path,
    model: list[str],
    backend: list[str],
    expression: str,
    tier: str,
) -> tuple[tuple[Model, ...], tuple[Backend, ...], tuple[Cell, ...]]:
    """Models, backends and cells that the options ask for."""
    from conformance import manifest as manifests
    from conformance.scenario import discover

    known = manifests.load(manifest)
    models = plan.choose(known.models, model, "model")
    if not model:
        models = plan.in_tier(models, tier)
    backends = plan.choose(known.backends, backend, "backend")
    if not backend:
        backends = tuple(column for column in backends if column.default)
    cells = plan.cells(models, backends, discover(scenarios), expression)
    return models, backends, cells


def _thresholds() -> Thresholds:
    from conformance import calibration

    return calibration.thresholds(calibration.read(CALIBRATION))


def _open(reports: Path, name: str) -> RunFolder:
    from conformance.store import open_run

    return open_run(reports, name)


def main() -> None:
    """Run a verb. The one place that turns errors into words and exit codes."""
    try:
        app()
    except ConformanceError as error:
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.code)


if __name__ == "__main__":
    main()

"""The verbs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from conformance import plan
from conformance.errors import ConformanceError, ExitCode
from conformance.records import Backend, Calibration, Cell, Model, Thresholds

if TYPE_CHECKING:
    from conformance.known import Known
    from conformance.records import Results
    from conformance.runner import Limits
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
KNOWN = Path("known.yaml")

Expectations = Annotated[Path, typer.Option("--known", help="The expectations.")]

known_app = typer.Typer(no_args_is_help=True, help="What is expected not to pass.")
app.add_typer(known_app, name="known")


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
    from conformance.report.terminal import summary
    from conformance.runner import Limits

    limits = Limits(cell=timeout, load=load_timeout)
    if resume:
        folder = _open(reports, resume)
    else:
        chosen = _chosen(manifest, scenarios, model, backend, expression, tier)
        folder = _begun(reports, scenarios, chosen, jobs)
    results, page = _executed(folder, scenarios, limits, jobs)
    summary(results, page, out)
    raise typer.Exit(results.footer.exit_code)


@app.command()
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
    from conformance.report.progress import Progress
    from conformance.runner import Limits
    from conformance.scenario import discover

    limits = Limits(cell=timeout, load=load_timeout)
    known, every = _known(expectations, manifest, scenarios)
    if name:
        folder = _open(reports, name)
    else:
        gates.refuse_unmatched(known, every)
        chosen = _chosen(manifest, scenarios, model, backend, expression, tier)
        folder = _begun(reports, scenarios, chosen, jobs)
        _executed(folder, scenarios, limits, jobs)
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
            _today(),
            calibrated=calibration.thresholds(calibration.read(CALIBRATION)),
            strict=strict,
            repeat=again if rounds else None,
        )
    if not name:
        gates.mark_expected(folder, decision)
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
    gates.write(decision, to or folder.path / "gate", step_summary=step_summary)
    typer.echo(gates.headline(decision) if step_summary else gates.markdown(decision))
    raise typer.Exit(decision.exit_code)


@app.command()
def diff(
    before: Annotated[str, typer.Argument(help="The run before: a name under reports/.")],
    after: Annotated[str, typer.Argument(help="The run after; a folder's path will do too.")],
    margin: Annotated[
        float, typer.Option(min=1.01, help="Tell margins that shrank by this factor.")
    ] = 2.0,
    cost: Annotated[
        float, typer.Option(min=1.01, help="Tell times and memory that changed by this factor.")
    ] = 1.5,
    strict: Annotated[
        bool, typer.Option(help="Shrunken margins and missing cells are regressions too.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the differences as JSON.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write them as Markdown.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write them as a page.")] = None,
    reports: Reports = REPORTS,
) -> None:
    """Compare two judged runs: failures, fixes, layouts, margins, speed, memory.

    Exits 1 when something that did not fail before fails now or is no longer supported.
    """
    from conformance import diff as differences
    from conformance.records import to_json
    from conformance.store.files import write_text

    a, b = (
        _open(Path() if Path(name, "plan.json").is_file() else reports, name).results()
        for name in (before, after)
    )
    found = differences.compare(a, b, margin=margin, cost=cost)
    if json:
        write_text(json, to_json(found, indent=1) + "\n")
    if markdown:
        write_text(markdown, differences.markdown(found))
    if html:
        write_text(html, differences.page(found))
    differences.show(found, out)
    raise typer.Exit(found.exit_code(strict=strict))


@known_app.command("update")
def update_known(
    name: Run = "latest",
    write: Annotated[bool, typer.Option(help="Write the file instead of a diff.")] = False,
    expectations: Expectations = KNOWN,
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Propose the smallest edit of known.yaml after which a run is as expected, as a diff.

    Exits 1 when an edit is proposed and not written.
    """
    from conformance.known import difference, update
    from conformance.store.files import write_text

    known, every = _known(expectations, manifest, scenarios)
    text = expectations.read_text("utf-8") if expectations.is_file() else "known: []\n"
    found = update(text, known, _open(reports, name).results(), every, _today())
    for line in (*found.changes, *(f"left for you: {line}" for line in found.left)):
        err.print(line, markup=False, highlight=False, soft_wrap=True)
    if write:
        write_text(expectations, found.text)
    else:
        typer.echo(difference(text, found.text, expectations), nl=False)
        raise typer.Exit(ExitCode.UNEXPECTED if found.changes else ExitCode.OK)


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


def _known(path: Path, manifest: Path, scenarios: Path) -> tuple[Known, tuple[Cell, ...]]:
    """The expectations, and every cell there could be. The default file may be absent."""
    from conformance import known as expectations
    from conformance import manifest as manifests
    from conformance.scenario import discover

    whole = manifests.load(manifest)
    every = plan.cells(whole.models, whole.backends, discover(scenarios))
    if path == KNOWN and not path.exists():
        return expectations.Known(), every
    return expectations.load(path), every


def _today() -> date:
    return datetime.now(UTC).date()


def _begun(
    reports: Path,
    scenarios: Path,
    chosen: tuple[tuple[Model, ...], tuple[Backend, ...], tuple[Cell, ...]],
    jobs: int | None,
) -> RunFolder:
    """A new run's folder with its plan."""
    from conformance import calibration, execution

    calibrated = calibration.read(CALIBRATION)
    return execution.begin(
        reports,
        *chosen,
        scenarios=scenarios.resolve(),
        thresholds=calibration.thresholds(calibrated),
        calibration=calibrated,
        jobs=jobs or os.cpu_count() or 1,
    )


def _executed(
    folder: RunFolder, scenarios: Path, limits: Limits, jobs: int | None
) -> tuple[Results, Path]:
    """Gather, judge and report. Exits when interrupted."""
    from conformance import execution
    from conformance.checkpoints import cache_folder
    from conformance.report.progress import Progress
    from conformance.scenario import discover

    with Progress(folder.plan().cells, out) as progress:
        finished = execution.execute(
            folder,
            discover(scenarios),
            cache=cache_folder(),
            limits=limits,
            jobs=jobs or os.cpu_count() or 1,
            on_event=progress,
        )
    if finished.results is None or finished.page is None:
        err.print(f"interrupted; go on with: conformance run --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    return finished.results, finished.page


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
    except Exception:  # noqa: BLE001 - Python's own 1 would say that a cell failed
        err.print_exception()
        sys.exit(ExitCode.HARNESS)


if __name__ == "__main__":
    main()

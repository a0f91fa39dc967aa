"""`conformance sweep`: the matrix over versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.cli import engines, selecting
from conformance.cli.options import Choice, Reports, Running, Trust, Without, err, out
from conformance.cli.verbs.environments import had
from conformance.errors import ConformanceError
from conformance.planning import selection

if TYPE_CHECKING:
    from conformance.environments import Environment, Spec, Untestable
    from conformance.records import Backend
    from conformance.sweep import Swept

_RANGE = "Releases and ranges of them: 0.28..0.32 or 0.8.0,0.8.1 or 0.28.. (all since)."


def sweep(
    *,
    choice: Annotated[Choice, Without("env", "environments")],
    running: Running,
    vllm: Annotated[str, typer.Option(help=_RANGE, metavar="VERSIONS")] = "",
    nnsight: Annotated[str, typer.Option(help="The same.", metavar="VERSIONS")] = "",
    transformers: Annotated[str, typer.Option(help="The same.", metavar="VERSIONS")] = "",
    torch: Annotated[str, typer.Option(help="The same.", metavar="VERSIONS")] = "",
    resume: Annotated[
        str, typer.Option(help="Go on with this sweep (`latest`): finished cells are kept.")
    ] = "",
    trust: Trust = False,
    reports: Reports,
) -> None:
    """Run the matrix on every combination of versions; write one page, versions × scenarios.

    One environment is built for each combination and kept (`conformance env list`); what it does
    not name stays as in the lock file where the resolver allows. The reference is computed once.
    Writes sweep.html, sweep.json and sweep.csv beside the run's own page.

    Exits 0 when every cell passes or is neutral, 1 when one failed, 3 when the harness did.

    Examples: `conformance sweep --vllm 0.28..0.32 --nnsight 0.8.0,0.8.1 -m llama`,
    `conformance sweep --resume latest`.
    """
    engines.needed()
    from conformance import sweep as sweeps
    from conformance.checkpoints import cache_folder
    from conformance.planning import trust as trusting

    versions = {"vllm": vllm, "nnsight": nnsight, "transformers": transformers, "torch": torch}
    ranges = {name: text for name, text in versions.items() if text}
    if resume:
        folder = selecting.to_resume(
            reports,
            resume,
            choice,
            trust=trust,
            installs=lambda run: sweeps.read(run).requirements,
            named=_named(ranges),
        )
        for spec in sweeps.read(folder).specs:  # what was removed since is built again
            had(spec)
    else:
        here = selection.select(replace(choice, expression=""))
        backends = [column.backend for column in here.columns]
        swept, made = _swept(ranges, [] if choice.allow_moves else backends)
        columns = sweeps.columns(backends, swept.points, made)
        selected = selection.within(here, columns, choice)
        noted = trusting.Executed(requirements=swept.requirements)
        trusting.note(cache_folder(), noted)
        folder = selecting.begun(reports, choice.scenarios, selected, running)
        sweeps.write(folder, swept)
    results, _ = selecting.executed(folder, choice.scenarios, running, verb="sweep")
    page = sweeps.publish(folder, results, sweeps.read(folder))
    _say(sweeps.read(folder))
    typer.echo(page)
    raise typer.Exit(results.footer.exit_code)


def _axes(ranges: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """The versions of each package, in order."""
    from conformance import sweep as sweeps
    from conformance.environments import vllm_package

    axes = {}
    for option, text in ranges.items():
        package = vllm_package() if option == "vllm" else option
        axes[package] = sweeps.expand(text, sweeps.published(package))
    return axes


def _named(ranges: dict[str, str]) -> tuple[str, ...]:
    """The requirements of every combination."""
    from conformance import sweep as sweeps

    if not ranges:
        return ()
    combined = sweeps.combinations(_axes(ranges))
    return tuple({words for one in combined for words in sweeps.spec_of(one).requirements})


def _swept(
    ranges: dict[str, str], kept: Sequence[Backend]
) -> tuple[Swept, dict[Spec, Environment | Untestable]]:
    """The versions that are meant, and the environment of every combination.

    Raises EnginesMoved, before anything is built, where a combination changes a package that a
    backend of `kept` runs on and that the sweep does not vary.
    """
    from conformance import environments as envs
    from conformance import sweep as sweeps
    from conformance.checkpoints import cache_folder

    if not ranges:
        raise ConformanceError(
            "no versions are named", remedy="for example --vllm 0.28..0.32 --nnsight 0.8.0,0.8.1"
        )
    axes = _axes(ranges)
    combinations = sweeps.combinations(axes)
    err.print(f"{len(combinations)} combinations of {axes}", markup=False, highlight=False)
    keep = {name for backend in kept for name in envs.runs_on(backend)}
    for spec in map(sweeps.spec_of, combinations) if keep else ():
        try:
            envs.refuse_moves(spec, envs.resolve(spec, cache_folder()), keep)
        except envs.Untestable:
            continue  # one of the trend's points, and told there
    points, environments = [], {}
    for versions in combinations:
        spec = sweeps.spec_of(versions)
        environments[spec] = had(spec)
        points.append(sweeps.point(versions, environments[spec]))
    return sweeps.Swept(axes, tuple(points)), environments


def _say(swept: Swept) -> None:
    from conformance import environments as envs

    built = [point for point in swept.points if point.environment]
    for point in built:
        if moved := envs.changed(point.moved, envs.ENGINES):
            changes = ", ".join(f"{name} {change}" for name, change in moved.items())
            out.print(f"{point.name}: not requested but changed: {changes}", highlight=False)
    own = sum(point.own_mib for point in built)
    seconds = sum(point.seconds for point in built)
    out.print(
        f"{len(built)} of {len(swept.points)} combinations have an environment: "
        f"{seconds:.0f} s to have them, {own:,.0f} MiB of their own",
        highlight=False,
    )

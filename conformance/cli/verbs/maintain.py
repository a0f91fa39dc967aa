"""`conformance doctor` and `clean`: what is installed, and what can be removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.checkpoints import cache_folder
from conformance.cli import engines
from conformance.cli.options import Manifest, On, Reports, note, out, say
from conformance.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.store.cleaning import Item

_GIB, _MIB = 1 << 30, 1 << 20

_NONE = """\
There is no engine here, and no engine environment was made yet.
  → conformance env engine, or anything that needs one: conformance run --tier smoke"""


def doctor(
    *,
    deep: Annotated[bool, typer.Option(help="Check every checkpoint's digest.")] = False,
    on: On = "",
    manifest: Manifest,
) -> None:
    """Report what is installed, which backends can run, and how to fix the others.

    With `--on`, report what each machine of a Ray cluster has, and which columns can run on it.
    """
    from conformance.environments import own

    if not own.is_here():
        if own.present(cache_folder(), engines.chosen()) is None:
            note(_NONE)
            raise typer.Exit(ExitCode.UNEXPECTED)
        engines.needed()

    from conformance import doctor as examine
    from conformance.inputs import manifest as manifests

    declared = manifests.load(manifest)
    if on:
        from conformance import cluster

        address = cluster.parsed(on)
        if (ended := cluster.apart()) is not None:
            raise typer.Exit(ended)
        with cluster.connected(address) as joined:
            findings = examine.of_cluster(joined.machines, declared.backends)
    else:
        findings = examine.diagnose(declared, cache_folder(), deep=deep)
    examine.render(findings, out)
    raise typer.Exit(ExitCode.OK if all(f.ok for f in findings) else ExitCode.UNEXPECTED)


def clean(
    *,
    days: Annotated[
        float, typer.Option(min=0, help="What was used within so many days stays …")
    ] = 14,
    room: Annotated[
        float, typer.Option(min=0, help="… while runs, and the cache, take at most so many GiB.")
    ] = 10,
    newest: Annotated[int, typer.Option(min=1, help="So many of the newest runs always stay.")] = 5,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
    reports: Reports,
) -> None:
    """List old runs and cached observations, and remove them with --yes.

    Runs that are in progress or can be resumed stay. Checkpoints and environments stay too
    (`conformance env remove`).
    """
    from conformance.store import cleaning

    now = time.time()
    limits = cleaning.RetentionLimits(days, int(room * _GIB), newest)
    runs = cleaning.runs(reports)
    cached = cleaning.observations(cache_folder() / "observations")
    gone = cleaning.superfluous(runs, limits, now)
    unused = cleaning.superfluous(cached, cleaning.RetentionLimits(days, limits.room), now)
    for run in gone:
        age = (now - run.used) / cleaning.DAY
        say(f"{run.path}  {run.size / _MIB:,.0f} MiB  {age:.0f} days old")
    say(f"runs: {_total(gone)} of {_total(runs)} can go")
    say(f"cached observations: {_total(unused)} of {_total(cached)} can go")
    if not (gone or unused):
        return
    if not yes:
        say("nothing was removed; conformance clean --yes removes it")
        return
    for item in (*gone, *unused):
        cleaning.remove(item)
    say("removed")


def _total(items: Sequence[Item]) -> str:
    return f"{len(items):,} ({sum(item.size for item in items) / _MIB:,.0f} MiB)"

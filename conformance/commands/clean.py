"""`conformance clean`: list and remove old runs and cached observations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.commands.shared.options import Reports, say
from conformance.spec.checkpoints import cache_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.runner.store.retention import Item

_GIB, _MIB = 1 << 30, 1 << 20


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
    from conformance.runner.store import retention

    now = time.time()
    limits = retention.RetentionLimits(days, int(room * _GIB), newest)
    runs = retention.runs(reports)
    cached = retention.observations(cache_folder() / "observations")
    gone = retention.select_superfluous(runs, limits, now)
    unused = retention.select_superfluous(cached, retention.RetentionLimits(days, limits.room), now)
    for run in gone:
        age = (now - run.used) / retention.DAY
        say(f"{run.path}  {run.size / _MIB:,.0f} MiB  {age:.0f} days old")
    say(f"runs: {_total(gone)} of {_total(runs)} can go")
    say(f"cached observations: {_total(unused)} of {_total(cached)} can go")
    if not (gone or unused):
        return
    if not yes:
        say("nothing was removed; conformance clean --yes removes it")
        return
    for item in (*gone, *unused):
        retention.remove(item)
    say("removed")


def _total(items: Sequence[Item]) -> str:
    return f"{len(items):,} ({sum(item.size for item in items) / _MIB:,.0f} MiB)"

"""`conformance doctor`: report what is installed and what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.checkpoints import cache_folder
from conformance.cli import engines
from conformance.cli.options import Manifest, On, err, out
from conformance.errors import ExitCode

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
            err.print(_NONE, markup=False)
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

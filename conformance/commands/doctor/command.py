"""`conformance doctor`: what is installed, and which backends can run."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.commands.shared import engines
from conformance.commands.shared.options import Manifest, On, note, out
from conformance.errors import ExitCode
from conformance.spec.checkpoints import cache_folder

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
    from conformance.runner.environments import own

    if not own.is_here():
        if own.find_environment(cache_folder(), engines.read_engine()) is None:
            note(_NONE)
            raise typer.Exit(ExitCode.UNEXPECTED)
        engines.require_engine()

    from conformance.commands.doctor import diagnosis as examine
    from conformance.spec.inputs import manifest as manifests

    declared = manifests.load(manifest)
    if on:
        from conformance.runner import cluster

        address = cluster.parse_address(on)
        if (ended := cluster.fork()) is not None:
            raise typer.Exit(ended)
        with cluster.connect(address) as joined:
            findings = examine.diagnose_cluster(joined.machines, declared.backends)
    else:
        findings = examine.diagnose(declared, cache_folder(), deep=deep)
    examine.render(findings, out)
    raise typer.Exit(ExitCode.OK if all(f.ok for f in findings) else ExitCode.UNEXPECTED)

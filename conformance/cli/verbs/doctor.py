"""`conformance doctor`: what is installed and what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.checkpoints import cache_folder
from conformance.cli import engines
from conformance.cli.options import Manifest, err, out
from conformance.errors import ExitCode

_NONE = """\
There is no engine here, and no engine environment was made yet.
  → conformance env engine, or anything that needs one: conformance run --tier smoke"""


def doctor(
    *,
    deep: Annotated[bool, typer.Option(help="Check every checkpoint's digest.")] = False,
    manifest: Manifest,
) -> None:
    """Say what is installed, which backends can run, and what mends what is missing."""
    from conformance.environments import own

    if not own.is_here():
        if own.present(cache_folder(), engines.chosen()) is None:
            err.print(_NONE, markup=False)
            raise typer.Exit(ExitCode.UNEXPECTED)
        engines.needed()

    from conformance import doctor as examine
    from conformance.inputs import manifest as manifests

    findings = examine.diagnose(manifests.load(manifest), cache_folder(), deep=deep)
    examine.render(findings, out)
    raise typer.Exit(ExitCode.OK if all(f.ok for f in findings) else ExitCode.UNEXPECTED)

"""`conformance doctor`: what is installed and what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli.options import MANIFEST, Manifest, out
from conformance.errors import ExitCode


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

"""`conformance validate` and `init`: a project's own files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.cli.options import Environments, Expectations, Folder, Manifest, err, out
from conformance.errors import ExitCode
from conformance.inputs import project

if TYPE_CHECKING:
    from conformance.errors import ConformanceError


def validate(
    *,
    manifest: Manifest,
    scenarios: Folder,
    expectations: Expectations,
    environments: Environments,
) -> None:
    """Read models.yaml, the scenarios, known.yaml and environments.yaml, and start nothing.

    Exits 0 when all is understood, 2 when something is not: every mistake with its file, line and
    remedy. Needs no engine. In a GitHub workflow the mistakes are annotations as well.
    """
    from conformance.planning.validation import validate as read

    here = replace(
        project.here(),
        models=manifest,
        scenarios=tuple(scenarios),
        known=expectations,
        environments=environments,
    )
    validated = read(here)
    for line in validated.lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    for error in validated.errors:
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        if os.environ.get("GITHUB_ACTIONS"):
            typer.echo(_annotation(error))
    raise typer.Exit(ExitCode.BAD_INPUT if validated.errors else ExitCode.OK)


def _annotation(error: ConformanceError) -> str:
    """A command of GitHub's runner; its own signs are escaped."""
    words = f"{error.message} → {error.remedy}" if error.remedy else error.message
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        words = words.replace(sign, code)
    path = os.path.relpath(error.path) if error.path else ""
    line = f",line={error.line}" if error.line else ""
    return f"::error file={path}{line}::{words}"


def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder.")] = Path(),
) -> None:
    """Write a first models.yaml, known.yaml and scenario, and name them in pyproject.toml.

    Nothing that is there is changed: the table [tool.conformance] is added at the end of a
    pyproject.toml, and a file that exists is refused.
    """
    from conformance.cli.new_project import start

    for path in start(folder):
        typer.echo(path)
    err.print("next: conformance validate, then conformance run -m my-model", highlight=False)

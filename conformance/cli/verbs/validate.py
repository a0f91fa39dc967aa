"""`conformance validate` and `init`: check and create a project's files."""

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
    """Check models.yaml, the scenarios, known.yaml and environments.yaml without starting anything.

    Exits 0 when all files are valid, 2 otherwise, and prints every mistake with its file, line and
    remedy. Needs no engine. In a GitHub workflow the mistakes also become annotations.
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
    """Return a command of GitHub's runner, with its special characters escaped."""
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

    No existing content is changed: the table [tool.conformance] is appended to an existing
    pyproject.toml, and any other file that exists is refused.
    """
    from conformance.cli.new_project import start

    for path in start(folder):
        typer.echo(path)
    err.print("next: conformance validate, then conformance run -m my-model", highlight=False)

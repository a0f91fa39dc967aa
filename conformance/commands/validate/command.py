"""`conformance validate`: check a project's files."""

from __future__ import annotations

import os
from dataclasses import replace

import typer

from conformance.commands.shared.options import (
    Environments,
    Expectations,
    Folder,
    Manifest,
    note,
    say,
)
from conformance.errors import ConformanceError, ExitCode
from conformance.spec.inputs import project


def validate(
    *, manifest: Manifest, scenarios: Folder, expectations: Expectations, environments: Environments
) -> None:
    """Check models.yaml, the scenarios, known.yaml and environments.yaml without starting anything.

    Exits 0 when all files are valid, 2 otherwise, and prints every mistake with its file, line and
    remedy. Needs no engine. In a GitHub workflow the mistakes also become annotations.
    """
    from conformance.commands.validate.validation import validate as read

    places = replace(project.here(), models=manifest, scenarios=tuple(scenarios))
    validated = read(replace(places, known=expectations, environments=environments))
    for line in validated.lines:
        say(line)
    for error in validated.errors:
        note(f"error: {error}")
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

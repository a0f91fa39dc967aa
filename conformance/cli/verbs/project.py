"""`conformance init` and `validate`: create and check a project's files."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.options import Environments, Expectations, Folder, Manifest, note, say
from conformance.errors import ConformanceError, ExitCode
from conformance.inputs import project, text_file
from conformance.inputs.project import TABLE


def validate(
    *, manifest: Manifest, scenarios: Folder, expectations: Expectations, environments: Environments
) -> None:
    """Check models.yaml, the scenarios, known.yaml and environments.yaml without starting anything.

    Exits 0 when all files are valid, 2 otherwise, and prints every mistake with its file, line and
    remedy. Needs no engine. In a GitHub workflow the mistakes also become annotations.
    """
    from conformance.planning.validation import validate as read

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


def init(folder: Annotated[Path, typer.Argument(help="The project's folder.")] = Path()) -> None:
    """Write a first models.yaml, known.yaml and scenario, and name them in pyproject.toml.

    No existing content is changed: the table [tool.conformance] is appended to an existing
    pyproject.toml, and any other file that exists is refused.
    """
    for path in start(folder):
        typer.echo(path)
    note("next: conformance validate, then conformance run -m my-model")


FOLDER = "conformance_scenarios"

_TABLE = f"""\
[{TABLE}]
models = "models.yaml"
scenarios = ["built-in", "{FOLDER}"]
known = "known.yaml"
"""


def start(folder: Path) -> tuple[Path, ...]:
    """Write the files and return their paths. Raises ConformanceError, before writing anything, if
    one of them exists.
    """
    from conformance.store.files import write_text

    settings = folder / "pyproject.toml"
    before = text_file.read(settings) if settings.is_file() else ""
    first = resources.files("conformance.cli") / "new_project"
    texts = {
        folder / "models.yaml": (first / "models.yaml").read_text("utf-8"),
        folder / "known.yaml": (first / "known.yaml").read_text("utf-8"),
        folder / FOLDER / "__init__.py": '"""Scenarios of this project."""\n',
        folder / FOLDER / "halve.py": (first / "halve.txt").read_text("utf-8"),
    }
    for path in texts:
        if path.exists():
            raise ConformanceError("is there already", path=path, remedy="name another folder")
    if f"[{TABLE}]" in before:
        raise ConformanceError(f"has [{TABLE}] already", path=settings, remedy="edit it by hand")
    for path, text in texts.items():
        write_text(path, text)
    write_text(settings, f"{before.rstrip()}\n\n{_TABLE}" if before else _TABLE)
    return (*texts, settings)

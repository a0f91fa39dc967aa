"""`conformance init`: create a project's files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from conformance.commands.shared.options import note
from conformance.errors import ConformanceError
from conformance.spec.inputs import text_file
from conformance.spec.inputs.project import TABLE


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
    from conformance.runner.store.files import write_text

    settings = folder / "pyproject.toml"
    before = text_file.read(settings) if settings.is_file() else ""
    first = resources.files("conformance.commands.init") / "new_project"
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

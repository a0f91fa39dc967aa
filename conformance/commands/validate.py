"""`conformance validate`: check a project's files. Nothing is started, and no engine is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

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
from conformance.runner.planning import plan
from conformance.spec.inputs import manifest as manifests
from conformance.spec.inputs import project
from conformance.spec.scenario import discover

T = TypeVar("T")


def validate(
    *, manifest: Manifest, scenarios: Folder, expectations: Expectations, environments: Environments
) -> None:
    """Check models.yaml, the scenarios, known.yaml and environments.yaml without starting anything.

    Exits 0 when all files are valid, 2 otherwise, and prints every mistake with its file, line and
    remedy. Needs no engine. In a GitHub workflow the mistakes also become annotations.
    """
    places = replace(project.here(), models=manifest, scenarios=tuple(scenarios))
    lines, errors = validate_project(replace(places, known=expectations, environments=environments))
    for line in lines:
        say(line)
    for error in errors:
        note(f"error: {error}")
        if os.environ.get("GITHUB_ACTIONS"):
            typer.echo(_annotation(error))
    raise typer.Exit(ExitCode.BAD_INPUT if errors else ExitCode.OK)


class Validated(NamedTuple):
    """A line for each file read, and all errors."""

    lines: tuple[str, ...]
    errors: tuple[ConformanceError, ...]


def validate_project(places: project.Project) -> Validated:
    """Read the project's files. Errors are what a run would refuse before it starts, and
    expectations that match no cell.
    """
    from conformance.judge import expectations
    from conformance.judge.expectations.entries import refuse_unmatched
    from conformance.runner import environments

    lines: list[str] = []
    errors: list[ConformanceError] = []

    def read(call: Callable[[], T], words: Callable[[T], str] | None = None) -> T | None:
        try:
            result = call()
        except ConformanceError as error:
            errors.append(error)
            return None
        lines.extend([words(result)] if words else [])
        return result

    models = read(
        lambda: manifests.load(places.models),
        lambda one: f"{places.models}: {len(one.models)} models, {len(one.backends)} backends",
    )
    errors += models.unusable.values() if models else ()
    folders = ", ".join(map(str, places.scenarios))
    scenarios = read(
        lambda: discover(places.scenarios), lambda one: f"{folders}: {len(one)} scenarios"
    )
    for scenario in (scenarios or {}).values():
        read(partial(getattr, scenario, "specification"))
    if places.known.exists():
        known = read(
            lambda: expectations.load(places.known),
            lambda one: f"{places.known}: {len(one.entries)} entries",
        )
        if known and models and scenarios:
            cells = plan.cells(models.models, models.backends, scenarios)
            read(partial(refuse_unmatched, known, cells))
    if places.environments.exists():
        read(
            lambda: environments.load(places.environments),
            lambda one: f"{places.environments}: {len(one)} environments",
        )
    return Validated(tuple(lines), tuple(errors))


def _annotation(error: ConformanceError) -> str:
    """Return a command of GitHub's runner, with its special characters escaped."""
    words = f"{error.message} → {error.remedy}" if error.remedy else error.message
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        words = words.replace(sign, code)
    path = os.path.relpath(error.path) if error.path else ""
    line = f",line={error.line}" if error.line else ""
    return f"::error file={path}{line}::{words}"

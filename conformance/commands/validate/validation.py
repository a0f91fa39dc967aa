"""Validate a project's files. Nothing is started, and no engine is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from conformance.errors import ConformanceError
from conformance.judge import expectations
from conformance.judge.expectations.entries import refuse_unmatched
from conformance.runner import environments
from conformance.runner.planning import plan
from conformance.spec.inputs import manifest
from conformance.spec.inputs.project import Project
from conformance.spec.records import record
from conformance.spec.scenario import discover

T = TypeVar("T")


@record()
class Validated:
    """One line for each file read, and all errors."""

    lines: tuple[str, ...]
    errors: tuple[ConformanceError, ...]


def validate(project: Project) -> Validated:
    """Read the project's models.yaml, scenarios, known.yaml and environments.yaml.

    Errors are what a run would refuse before it starts, and expectations that match no cell.
    """
    lines: list[str] = []
    errors: list[ConformanceError] = []

    def attempt(call: Callable[[], T]) -> T | None:
        try:
            return call()
        except ConformanceError as error:
            errors.append(error)
            return None

    def read(call: Callable[[], T], words: Callable[[T], str]) -> T | None:
        if (result := attempt(call)) is not None:
            lines.append(words(result))
        return result

    models = read(
        lambda: manifest.load(project.models),
        lambda manifest: (
            f"{project.models}: {len(manifest.models)} models, {len(manifest.backends)} backends"
        ),
    )
    errors += models.unusable.values() if models else ()
    folders = ", ".join(map(str, project.scenarios))
    scenarios = read(
        lambda: discover(project.scenarios),
        lambda scenarios: f"{folders}: {len(scenarios)} scenarios",
    )
    for scenario in (scenarios or {}).values():
        attempt(partial(getattr, scenario, "specification"))
    if project.known.exists():
        known = read(
            lambda: expectations.load(project.known),
            lambda known: f"{project.known}: {len(known.entries)} entries",
        )
        if known and models and scenarios:
            cells = plan.cells(models.models, models.backends, scenarios)
            attempt(partial(refuse_unmatched, known, cells))
    if project.environments.exists():
        read(
            lambda: environments.load(project.environments),
            lambda specs: f"{project.environments}: {len(specs)} environments",
        )
    return Validated(tuple(lines), tuple(errors))

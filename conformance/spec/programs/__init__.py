"""Programs: interventions as data, with one meaning, run as scenarios (docs/programs.md)."""

from __future__ import annotations

from typing import Any

from conformance.spec.programs.meaning import Acts, gathered, meaning, observed
from conformance.spec.programs.operations import (
    Do,
    Form,
    ModelPart,
    Operation,
    Program,
    Tokens,
    from_plain,
)
from conformance.spec.programs.source import text
from conformance.spec.programs.validity import check, complaints, valid

#: The former name of `ModelPart`, for one release.
Part = ModelPart

__all__ = [
    "Acts",
    "Do",
    "Form",
    "ModelPart",
    "Operation",
    "Part",
    "Program",
    "Tokens",
    "check",
    "complaints",
    "gathered",
    "layers",
    "meaning",
    "observed",
    "program",
    "text",
    "valid",
]


def program(plain: Any) -> Program:
    """Parse a program. Raises pydantic.ValidationError or ConformanceError if it is invalid."""
    return check(from_plain(plain))


def layers(program: Program) -> dict[str, int]:
    """Return the highest layer it names for `@scenario(layers=…)`: smaller models refuse."""
    return {"highest": program.layers - 1} if program.layers else {}

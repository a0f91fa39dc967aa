"""Programs: interventions as data, with one meaning, run as scenarios (docs/programs.md)."""

from __future__ import annotations

from typing import Any

from conformance.programs.meaning import Acts, gathered, meaning, observed
from conformance.programs.operations import Do, Form, Operation, Part, Program, Tokens, from_plain
from conformance.programs.source import text
from conformance.programs.validity import check, complaints, valid

__all__ = [
    "Acts",
    "Do",
    "Form",
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
    """A program from data. Raises pydantic.ValidationError or ConformanceError for what is none."""
    return check(from_plain(plain))


def layers(program: Program) -> dict[str, int]:
    """The highest layer that it names, as `@scenario(layers=…)` takes it: a model that has not so
    many refuses.
    """
    return {"highest": program.layers - 1} if program.layers else {}

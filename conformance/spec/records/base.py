"""How records are declared, and read from and written to JSON.

They are plain frozen dataclasses. pydantic's `TypeAdapter` reads, checks and describes them, so
their definitions are the published schema of `results.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

T = TypeVar("T")

_IN_A_NAME = r"A-Za-z0-9_.+~=,@-"

#: Names a run, a model, a column, a scenario or a case, and thus a folder. Checked whenever a
#: record is read from a file, so that no name leads out of a run's folder.
Id = Annotated[str, StringConstraints(pattern=rf"^[A-Za-z0-9_][{_IN_A_NAME}]*$", max_length=250)]

#: A part of an id, or "".
Label = Annotated[str, StringConstraints(pattern=rf"^[{_IN_A_NAME}]*$", max_length=250)]

#: `scenario[model-backend-case]`.
CellId = Annotated[
    str,
    StringConstraints(pattern=rf"^[A-Za-z0-9_][{_IN_A_NAME}]*\[[{_IN_A_NAME}]+\]$", max_length=999),
]


#: Positive and nonnegative counts.
Count = Annotated[int, Field(ge=1)]
Tally = Annotated[int, Field(ge=0)]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(*, order: bool = False) -> Callable[[type[T]], type[T]]:
    """Declare a frozen dataclass that JSON readers check strictly: unknown keys are refused.

    nan and infinities are written as strings such as "NaN", which browsers and pydantic read.
    """

    def decorate(cls: type[T]) -> type[T]:
        cls.__pydantic_config__ = ConfigDict(extra="forbid", ser_json_inf_nan="strings")  # type: ignore[attr-defined]
        return dataclass(frozen=True, slots=True, order=order)(cls)

    return decorate


def digest(value: Any) -> str:
    """Return a short stable name for a JSON-like value."""
    text = json.dumps(value, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the cached reader, writer and schema of one record."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(record: Any, *, indent: int | None = None) -> str:
    return adapter(type(record)).dump_json(record, indent=indent).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Parse a record. Raises pydantic.ValidationError for an unknown key, wrong type or no JSON."""
    return adapter(kind).validate_json(text)

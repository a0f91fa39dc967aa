"""Parse a YAML file that a person writes into records. Errors come with their line and a remedy."""

from __future__ import annotations

import difflib
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

from conformance.errors import ConformanceError
from conformance.spec.inputs import text_file
from conformance.spec.records import adapter

T = TypeVar("T")

Location = tuple[str | int, ...]

#: Handwritten files are far below these limits. A file that is huge, deep, or grows through its
#: aliases is refused before it costs time or memory.
MOST_BYTES = 1 << 18
_MOST_VALUES = 50_000
_DEEPEST = 50


class Refusal(Exception):
    """An error in the document. The caller adds the file and the line."""

    def __init__(self, location: Location, message: str, remedy: str) -> None:
        super().__init__(message)
        self.location, self.message, self.remedy = location, message, remedy

    def at(self, path: Path, tree: Any) -> ConformanceError:
        return ConformanceError(
            self.message, remedy=self.remedy, path=path, line=line_of(tree, self.location)
        )


def parse(path: Path, *, holds: str) -> CommentedMap:
    """Return the file's tree with lines and comments. `holds` says what the file must contain.

    Raises ConformanceError for a file that cannot be read, is not YAML or is not a mapping.
    """
    text = text_file.read(path, most=MOST_BYTES)
    try:
        _shallow(text)
        with warnings.catch_warnings(action="ignore", category=ReusedAnchorWarning):
            tree = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        words, remedy = error.problem or error.context, "fix the syntax there or in the line before"
        words = f"is not YAML: {words}"
        if isinstance(error, DuplicateKeyError):
            key = re.search(r'"(.*?)"', error.problem or "")
            words = f"{key.group(1) if key else 'a key'!r} is there twice"
            remedy = "rename or remove one of the two"
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConformanceError(words, path=path, line=line, remedy=remedy) from error
    except Exception as error:  # RecursionError, and ruamel.yaml's errors without a position
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, RecursionError):
            words = "it is too long, or nested too deeply"
        raise ConformanceError(f"is not YAML: {words}", path=path, remedy="fix it") from error
    if not isinstance(tree, CommentedMap):
        raise ConformanceError("holds no mapping", path=path, remedy=holds)
    try:
        _plain(tree)
    except Refusal as refusal:
        raise refusal.at(path, tree) from None
    return tree


def _shallow(text: str) -> None:
    """Raise RecursionError for text that is too deep or too long: building its tree takes time that
    grows with the square of the depth.
    """
    depth = 0
    for number, event in enumerate(YAML(typ="rt").parse(text)):
        depth += isinstance(event, CollectionStartEvent)
        depth -= isinstance(event, CollectionEndEvent)
        if depth > _DEEPEST or number > _MOST_VALUES:
            raise RecursionError


def _plain(tree: Any) -> None:
    """Raise Refusal for values that JSON cannot represent, and for trees that are too large or that
    aliases make infinite.
    """
    waiting: list[tuple[Location, Any]] = [((), tree)]
    values = 0
    while waiting:
        location, value = waiting.pop()
        values += 1
        if values > _MOST_VALUES or len(location) > _DEEPEST:
            raise Refusal(
                location,
                f"holds more than {_MOST_VALUES} values, or more than {_DEEPEST} in each other",
                "write less, and no alias to what it stands in",
            )
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str | int | float | bool | None) or _odd(key):
                    raise Refusal(location, f"{key!r} cannot be a key", "write a word")
            waiting += [((*location, key), part) for key, part in value.items()]
        elif isinstance(value, list):
            waiting += [((*location, index), part) for index, part in enumerate(value)]
        elif not isinstance(value, str | int | float | bool | date | None) or _odd(value):
            words = "a number has more digits than any figure here"
            if not isinstance(value, int):  # which may have too many to be written
                words = f"{str(value)[:40]!r} is no value that can stand here"
            raise Refusal(location, words, "correct the value")


def _odd(value: object) -> bool:
    """Return whether a value cannot be written back: a lone surrogate or null character, NaN, or an
    integer of more than 64 bits.
    """
    if isinstance(value, str):
        return any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in value)
    if isinstance(value, int):
        return abs(value) >= 1 << 63
    return isinstance(value, float) and math.isnan(value)


def line_of(tree: Any, location: Location) -> int | None:
    """Return the line (from 1) of the innermost part of `location` that exists in the file."""
    line = None
    for step in location:
        if isinstance(tree, CommentedMap) and step in tree:
            line = tree.lc.key(step)[0] + 1
        elif isinstance(tree, CommentedSeq) and isinstance(step, int) and step < len(tree):
            line = tree.lc.item(step)[0] + 1
        else:
            break
        tree = tree[step]
    return line


def check(kind: type[T], tree: CommentedMap, keys: Callable[[Location], Sequence[str]]) -> T:
    """Return the tree as a record; `keys` returns the valid keys at a place. Raises Refusal."""
    # Through JSON: pydantic's strict mode then accepts lists for tuples and mappings for records,
    # but still no "2" for a 2.
    try:
        text = json.dumps(tree, default=str)
        return adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        # Report the deepest error: a misspelt key says more than the missing key it causes.
        first = max(
            error.errors(), key=lambda error: (error["type"] != "missing", len(error["loc"]))
        )
        location: Location = first["loc"] or ("",)
        where, key = ".".join(map(str, location[:-1])), location[-1]
        if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            known = keys(location[:-1])
            near = difflib.get_close_matches(str(key), known, 1)
            remedy = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            message = f"unknown key {key!r}" + (f" in {where}" if where else "")
            raise Refusal(location, message, remedy) from None
        if first["type"] in ("missing", "missing_argument"):
            message = f"{where or 'the file'} has no {key!r}"
            raise Refusal(location, message, f"add `{key}:`") from None
        message = f"{'.'.join(map(str, location))}: {first['msg']}, not {first['input']!r}"
        raise Refusal(location, message, "correct the value") from None

"""A YAML file that a person writes → records, refused with its line and a remedy."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError

from conformance.errors import ConformanceError
from conformance.records import adapter

T = TypeVar("T")

Location = tuple[str | int, ...]


class Refusal(Exception):
    """Something in the document is wrong; whoever reads it adds the file and the line."""

    def __init__(self, location: Location, message: str, remedy: str) -> None:
        super().__init__(message)
        self.location, self.message, self.remedy = location, message, remedy

    def at(self, path: Path, tree: Any) -> ConformanceError:
        return ConformanceError(
            self.message, remedy=self.remedy, path=path, line=line_of(tree, self.location)
        )


def parse(path: Path, *, holds: str) -> CommentedMap:
    """The file's tree, with its lines and comments. `holds` says what belongs into it.

    Raises ConformanceError for a file that cannot be read, is no YAML or holds no mapping.
    """
    try:
        tree = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConformanceError(
            f"cannot be read: {error.strerror}", path=path, remedy="name a file that exists"
        ) from error
    except DuplicateKeyError as error:
        key = re.search(r'"(.*?)"', error.problem or "")
        raise ConformanceError(
            f"{key.group(1) if key else 'a key'!r} is there twice",
            path=path,
            line=error.problem_mark.line + 1 if error.problem_mark else None,
            remedy="rename or remove one of the two",
        ) from error
    except MarkedYAMLError as error:
        raise ConformanceError(
            f"is not YAML: {error.problem}",
            path=path,
            line=error.problem_mark.line + 1 if error.problem_mark else None,
            remedy="mend the syntax there or in the line before",
        ) from error
    if not isinstance(tree, CommentedMap):
        raise ConformanceError("holds no mapping", path=path, remedy=holds)
    return tree


def line_of(tree: Any, location: Location) -> int | None:
    """The line (from 1) of the innermost part of `location` that is in the file."""
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
    """The tree as a record; `keys` names those known at a place. Raises Refusal."""
    # Through JSON, because pydantic's strict mode then takes lists for tuples and mappings
    # for records, yet no "2" for a 2.
    try:
        text = json.dumps(tree, default=str)
        return adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        # The deepest one: a misspelt key is more telling than the missing one it causes.
        first = max(
            error.errors(), key=lambda found: (found["type"] != "missing", len(found["loc"]))
        )
        location: Location = first["loc"]
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

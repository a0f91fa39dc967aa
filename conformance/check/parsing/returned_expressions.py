"""Which expression a user's function returns under a name: found in its text.

A name is a site's: the key of the returned mapping, with those of mappings in it. Keys that are
computed are known by their constant parts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance.check.parsing.scopes import Scopes

#: Of a key that is computed.
_ANY = ".+"

#: How many functions and variables are followed.
_HOPS = 6


def returned(scopes: Scopes, name: str) -> ast.expr | None:
    """What is returned under this name; all that is returned where its keys cannot be read."""
    statements = scopes.returns(scopes.function)
    entries = list(_every(scopes))
    plain = [entry for entry in entries if entry[0] != _ANY]
    for patterns, rest in ((plain, ""), (plain, "_.*"), (entries, "")):
        for pattern, value in patterns:
            if re.fullmatch(f"{pattern}{rest}", name):
                return value
    return None if entries or not statements else statements[0].value


def every_returned(scopes: Scopes) -> list[ast.expr]:
    """All that a function returns: of mappings their values."""
    statements = scopes.returns(scopes.function)
    whole = [one.value for one in statements if one.value is not None]
    return [value for _, value in _every(scopes)] or whole


def _every(scopes: Scopes) -> Iterator[tuple[str, ast.expr]]:
    for statement in scopes.returns(scopes.function):
        if statement.value is not None:
            yield from _entries(scopes, statement.value, statement, _HOPS)


def _entries(
    scopes: Scopes, value: ast.expr, near: ast.stmt, hops: int
) -> Iterator[tuple[str, ast.expr]]:
    """The pattern of each name in a mapping, and its value; the innermost first."""
    if not hops:
        return
    if isinstance(value, ast.Dict):
        pairs: list[tuple[ast.expr | None, ast.expr]] = list(
            zip(value.keys, value.values, strict=True)
        )
    elif isinstance(value, ast.DictComp):
        pairs = [(value.key, value.value)]
    elif isinstance(value, ast.Name):
        yield from _made(scopes, value.id, near, hops)
        return
    elif isinstance(value, ast.Call):
        yield from _called(scopes, value, near, hops)
        return
    else:
        return
    for key, item in pairs:
        if key is None:  # `**other`
            yield from _entries(scopes, item, near, hops - 1)
            continue
        begin = _pattern(key)
        if isinstance(item, (ast.Dict, ast.DictComp, ast.Call, ast.Name)):
            for rest, inner in _entries(scopes, item, near, hops - 1):
                yield f"{begin}_{rest}", inner
        yield begin, item


def _made(scopes: Scopes, name: str, near: ast.stmt, hops: int) -> Iterator[tuple[str, ast.expr]]:
    """Of a variable: what it is filled with under its keys, and what it was made as."""
    made = scopes.makers(name, near)
    for statement in made:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and isinstance(target, ast.Subscript):
            yield _pattern(target.slice), statement.value
    for statement in made:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            yield from _entries(scopes, statement.value, statement, hops - 1)


def _called(
    scopes: Scopes, call: ast.Call, near: ast.stmt, hops: int
) -> Iterator[tuple[str, ast.expr]]:
    """Of `dict(a=…)`, of a mapping's method, or of what a helper returns."""
    for keyword in call.keywords:
        if keyword.arg:
            yield re.escape(_plain(keyword.arg)), keyword.value
    if isinstance(call.func, ast.Attribute):
        yield from _entries(scopes, call.func.value, near, hops - 1)
    elif isinstance(call.func, ast.Name) and call.func.id in scopes.helpers:
        for statement in scopes.returns(scopes.helpers[call.func.id]):
            if statement.value is not None:
                yield from _entries(scopes, statement.value, statement, hops - 1)


def _pattern(key: ast.expr) -> str:
    """A regular expression of the names that a key gives."""
    if isinstance(key, ast.Constant):
        return re.escape(_plain(str(key.value)))
    if isinstance(key, ast.JoinedStr):
        parts = (
            re.escape(_plain(str(one.value))) if isinstance(one, ast.Constant) else ".*"
            for one in key.values
        )
        return "".join(parts)
    return _ANY


def _plain(key: str) -> str:
    return re.sub(r"\W", "_", key, flags=re.ASCII)

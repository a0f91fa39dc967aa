"""Patterns for Python code: `X.to(A)` matches every call of `to`, and captures `X` and `A`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import libcst as cst

#: A single capital in a pattern is a hole: it matches any expression.
HOLE = re.compile(r"\b[A-Z]\b")

#: The captured node of each hole.
Holes = Mapping[str, Any]

_PRIMARY = (cst.Attribute, cst.Subscript, cst.Name, cst.Call, cst.BaseNumber, cst.BaseString)

#: Nodes that a match ignores.
_QUIET = (
    cst.BaseParenthesizableWhitespace,
    cst.Comma,
    cst.Dot,
    cst.LeftParen,
    cst.RightParen,
    cst.LeftSquareBracket,
    cst.RightSquareBracket,
)


@cache
def parse_pattern(pattern: str) -> cst.CSTNode:
    """Return the tree of a pattern, an expression or an assignment."""
    statement = cst.ensure_type(cst.parse_statement(pattern), cst.SimpleStatementLine).body[0]
    return statement.value if isinstance(statement, cst.Expr) else statement


def match(pattern: cst.CSTNode, node: cst.CSTNode) -> dict[str, Any] | None:
    """Return the nodes captured by a pattern's holes, None if the node does not match."""
    holes: dict[str, Any] = {}
    return holes if _fits(pattern, node, holes) else None


def _fits(pattern: cst.CSTNode, node: cst.CSTNode, holes: dict[str, Any]) -> bool:
    if isinstance(pattern, cst.Name) and HOLE.fullmatch(pattern.value):
        return bool(holes.setdefault(pattern.value, node).deep_equals(node))
    if type(pattern) is not type(node):
        return False
    theirs, mine = parts_of(pattern), parts_of(node)
    if not mine:
        return getattr(pattern, "value", None) == getattr(node, "value", None)
    return len(theirs) == len(mine) and all(
        _fits(a, b, holes) for a, b in zip(theirs, mine, strict=True)
    )


def parts_of(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the children of a node that a match compares."""
    return [child for child in node.children if not isinstance(child, _QUIET)]


def enclosed(node: cst.CSTNode, code: str) -> str:
    """Return the text of a node for use in a larger expression, in parentheses if needed."""
    return code if isinstance(node, _PRIMARY) and not node.lpar else f"({code})"

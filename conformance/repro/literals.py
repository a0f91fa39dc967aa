"""A script's data, read from its text as literals: nothing of them is ever executed."""

from __future__ import annotations

import ast
from typing import Any


def assigned(text: str, *names: str) -> tuple[dict[str, Any], str]:
    """What a script assigns, last, to those of these names that it has, and its text before the
    first name's.

    Raises ValueError for what is no literal, SyntaxError for what is no Python.
    """
    nodes = {
        node.targets[0].id: node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    literals = {name: ast.literal_eval(nodes[name].value) for name in names if name in nodes}
    lines = text.splitlines(keepends=True)
    return literals, "".join(lines[: nodes[names[0]].lineno - 1] if names[0] in nodes else lines)

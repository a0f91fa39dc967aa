"""Read a script's data from its text as literals, without executing anything."""

from __future__ import annotations

import ast
from typing import Any


def assigned(text: str, *names: str) -> tuple[dict[str, Any], str]:
    """Return the last literal that a script assigns to each of these names, and the text before the
    first name's assignment.

    Raises ValueError for a value that is not a literal, SyntaxError for invalid Python.
    """
    nodes = {
        node.targets[0].id: node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    literals = {name: ast.literal_eval(nodes[name].value) for name in names if name in nodes}
    lines = text.splitlines(keepends=True)
    return literals, "".join(lines[: nodes[names[0]].lineno - 1] if names[0] in nodes else lines)

"""Dicts and lists that a block fills: on vLLM it does so in the engine, where they must be made.

Found in a function's text: nothing of it is run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from conformance.check.parsing import statements


@dataclass(frozen=True)
class Container:
    """`name = {}` in line `made`; `first` is the first line of the block that fills it, which is
    `opened` above it, None where several do, or one in a loop.
    """

    name: str
    made: int
    value: str
    first: int | None
    opened: int = 0

    @property
    def why(self) -> str:
        """What is another thing there, and what mends it."""
        fills = f"a block fills `{self.name}` in the engine, and it comes back only where it is"
        if self.first:
            inside = f"{fills} made inside of the block, and saved"
            return f"{inside}: line {self.made} makes it outside"
        return (
            f"{fills} saved there: save each value under a name of its own in the block, and add "
            f"it to `{self.name}` after the block"
        )

    @property
    def there(self) -> str:
        """The block's first line, which makes it there, "" where no one line does."""
        return f"{self.name} = {self.value}.save()" if self.first else ""


def empty(value: ast.expr) -> bool:
    """`{}`, `[]`, `dict()` or `list()`, which nothing saves."""
    return isinstance(value, (ast.Dict, ast.List)) or (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in {"dict", "list"}
    )


def containers(function: ast.FunctionDef) -> list[Container]:
    """Those that are made outside of all blocks and filled in one or more."""
    blocks = [node for node in ast.walk(function) if isinstance(node, ast.With)]
    inside = {id(node) for block in blocks for one in block.body for node in ast.walk(one)}
    found = []
    for statement in ast.walk(function):
        if not isinstance(statement, ast.Assign) or id(statement) in inside:
            continue
        for name, value in _made(statement):
            filling = [block for block in blocks if fills(block, name)]
            # Of blocks in each other the inner ones.
            inner = [
                b for b in filling if not any(o is not b and o in ast.walk(b) for o in filling)
            ]
            if inner:
                once = len(inner) == 1 and not _repeated(function, inner[0], statement)
                first = inner[0].body[0].lineno if once else None
                made = Container(name, statement.lineno, ast.unparse(value), first, inner[0].lineno)
                found.append(made)
    return found


def _made(statement: ast.Assign) -> list[tuple[str, ast.expr]]:
    """What a statement makes empty, by name: `seen = {}`, or `a, b = [], []`."""
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    return [(t.id, v) for t, v in pairs if isinstance(t, ast.Name) and empty(v)]


def _repeated(function: ast.FunctionDef, block: ast.With, statement: ast.stmt) -> bool:
    """Is a block run again and again for one container?"""
    return any(
        isinstance(loop, (ast.For, ast.While))
        and any(node is block for node in ast.walk(loop))
        and not any(node is statement for node in ast.walk(loop))
        for loop in ast.walk(function)
    )


def fills(block: ast.stmt, name: str) -> bool:
    """Does a block put something into the dict or the list of this name?"""
    roots = (statements.filled_by(node) for node in ast.walk(block))
    return any(root is not None and root.id == name for root in roots)

"""Dicts and lists that a block fills: on vLLM it does so in the engine, where they must be made.

Found in a function's text: nothing of it is run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from conformance.check.parsing import statements

#: What makes a list or a mapping when it is called.
_MAKES = frozenset({"dict", "list", "defaultdict", "OrderedDict", "deque"})

#: What a list or a mapping is as it is written.
_DISPLAYS = (ast.Dict, ast.List, ast.DictComp, ast.ListComp)

#: Methods that put something at the end, where blocks do not see what others have put.
_APPENDS = frozenset({"append", "extend"})


@dataclass(frozen=True)
class Container:
    """`name = {}` in line `made`; `first` is the first line of the block that it can be made in,
    which is `opened` above it, None where no one block is run once and fills it. `together`: the
    blocks of several prompts fill the same list or mapping of it, or itself.
    """

    name: str
    made: int
    value: str
    first: int | None
    opened: int = 0
    together: bool = False

    @property
    def why(self) -> str:
        """What is another thing there, and what mends it."""
        if self.together:
            return (
                f"the blocks of several prompts fill `{self.name}` together, each in the engine "
                f"for itself, and line {self.made} makes it outside. Make it in the block of their "
                f"trace, a dict that is saved, `{self.name} = {{}}.save()`, and put each prompt's "
                "values at a key of its own"
            )
        fills = f"a block fills `{self.name}` in the engine, and it comes back only where it is"
        if self.first:
            inside = f"{fills} made inside of the block, and saved"
            return f"{inside}: line {self.made} makes it outside"
        return (
            f"{fills} saved there: save each value in the block of line {self.opened}, under a "
            "name of its own or in a `{}.save()` that is made there, and add it to "
            f"`{self.name}` after the block"
        )

    @property
    def there(self) -> str:
        """The block's first line, which makes it there, "" where no one line does."""
        return f"{self.name} = {self.value}.save()" if self.first else ""


def empty(value: ast.expr) -> bool:
    """`{}`, `[]`, `dict()`, `defaultdict(list)`, or several of them in one, which nothing saves."""
    if isinstance(value, (ast.ListComp, ast.DictComp)):
        return empty(value.elt if isinstance(value, ast.ListComp) else value.value)
    return isinstance(value, (ast.Dict, ast.List)) or _called(value) in _MAKES


def _holds(value: ast.expr) -> bool:
    """Is it a list or a mapping, whatever is in it when it is made?"""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return isinstance(value.left, ast.List) or isinstance(value.right, ast.List)
    return isinstance(value, _DISPLAYS) or empty(value)


def _called(value: ast.expr) -> str:
    """The name of what is called, "" for no call."""
    function = value.func if isinstance(value, ast.Call) else None
    named = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return str(named)


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
                found.append(_container(function, statement, name, value, inner))
    return found


def _container(
    function: ast.FunctionDef,
    statement: ast.Assign,
    name: str,
    value: ast.expr,
    filling: list[ast.With],
) -> Container:
    """What a statement makes under a name, which these blocks fill."""
    around = _around(function, statement, filling)
    together = around is not None and around not in filling and _together(filling, name)
    made = ast.unparse(value)
    made = f"({made})" if isinstance(value, ast.BinOp) else made
    first = around.body[0].lineno if around is not None and not together else None
    opened = (around or filling[0]).lineno
    return Container(name, statement.lineno, made, first, opened, together)


def _around(
    function: ast.FunctionDef, statement: ast.stmt, filling: list[ast.With]
) -> ast.With | None:
    """The innermost block that is run once and in which all of these are: one of them, or that of
    the trace whose prompts they are.
    """
    traces = [node for node in ast.walk(function) if isinstance(node, ast.With)]
    holding = [
        block
        for block in traces
        if (block in filling or statements.opens_trace(block) is not None)
        and all(one in ast.walk(block) for one in filling)
        and not _repeated(function, block, statement)
    ]
    return max(holding, key=lambda block: block.lineno, default=None)


def _together(filling: list[ast.With], name: str) -> bool:
    """Do these blocks put anything elsewhere than at a key or an index of its own? Of such entries
    alone those of all prompts come home.
    """
    return any(
        root is not None and root.id == name and not _keyed(node)
        for block in filling
        for node in ast.walk(block)
        for root in [statements.filled_by(node)]
    )


def _keyed(node: ast.AST) -> bool:
    """Is it put at a key of the whole: `seen[n] = …`, or `seen.setdefault(n, []).append(…)`?"""
    into = node.value if isinstance(node, ast.Subscript) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        into = node.func.value
        if isinstance(into, ast.Name):
            return node.func.attr not in _APPENDS
    if isinstance(into, ast.Call) and isinstance(into.func, ast.Attribute):
        into = into.func.value  # `.setdefault` gives an entry
    return isinstance(into, ast.Name)


def _made(statement: ast.Assign) -> list[tuple[str, ast.expr]]:
    """The lists and mappings that a statement makes, by name: `seen = {}`, or `a, b = [], []`."""
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    return [(t.id, v) for t, v in pairs if isinstance(t, ast.Name) and _holds(v)]


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

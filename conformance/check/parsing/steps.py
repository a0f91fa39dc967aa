"""In which steps of a generation a statement runs, by the text: nothing of it is executed but
comparisons of numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: What a test on the number of a step may be made of to be worked out here.
_PLAIN = (
    ast.Expression,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Set,
    ast.cmpop,
    ast.boolop,
    ast.unaryop,
    ast.expr_context,
)

#: And arithmetic that stays small.
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mod)

#: More steps than any trace has.
_MANY = 1 << 20

Guard = ast.If | ast.For | ast.With


def guard(roots: list[ast.stmt], statement: ast.stmt, step: int) -> Guard | None:
    """What keeps a statement from a step, the innermost first: an `if` on the step's number that it
    stands in, or that leaves the loop before it; or a loop over other steps. None where nothing
    does, or where it cannot be told.
    """
    way = _way(roots, statement)
    numbers = {name for one in way for name in _numbers(one)}
    for outer, inner in zip(reversed(way[:-1]), reversed(way[1:]), strict=True):
        if isinstance(outer, ast.If):
            holds = _holds(outer.test, numbers, step)
            if holds is not None and holds is not (inner in outer.body):
                return outer
        leaving = (one for one in _before(outer, inner) if isinstance(one.body[-1], ast.Continue))
        left = next((one for one in leaving if _holds(one.test, numbers, step)), None)
        if left is not None:
            return left
        steps = _steps(outer)
        if isinstance(outer, (ast.For, ast.With)) and steps is not None and step not in steps:
            return outer
    return None


def first_alone(roots: list[ast.stmt], statement: ast.stmt) -> bool:
    """Does a statement stand in no loop over steps? Then it is run in the first one alone."""
    return not any(_goes_over_steps(one) for one in _way(roots, statement)[:-1])


def following_loop(roots: list[ast.stmt], statement: ast.stmt) -> ast.For | ast.With | None:
    """The loop over steps that comes after a statement in the block that it stands in."""
    *around, last = _way(roots, statement)
    inner = list(_inner(around[-1])) if around else roots
    after = inner[inner.index(last) + 1 :]
    loops = (one for one in after if isinstance(one, (ast.For, ast.With)))
    return next((one for one in loops if _goes_over_steps(one)), None)


def loop_around(roots: list[ast.stmt], statement: ast.stmt) -> ast.For | ast.With | None:
    """The outermost loop over steps that a statement stands in."""
    around = (one for one in _way(roots, statement)[:-1] if isinstance(one, (ast.For, ast.With)))
    return next((one for one in around if _goes_over_steps(one)), None)


def _goes_over_steps(statement: ast.stmt) -> bool:
    """`tracer.iter[…]` or `tracer.all()`."""
    every = (node for head in _heads(statement) for node in ast.walk(head))
    return any(isinstance(node, ast.Attribute) and node.attr in {"iter", "all"} for node in every)


def condition(roots: list[ast.stmt], statement: ast.stmt) -> ast.If | None:
    """The innermost `if` on the number of a step that a statement stands in."""
    way = _way(roots, statement)
    numbers = {name for one in way for name in _numbers(one)}
    for one in reversed(way):
        if isinstance(one, ast.If) and numbers & names(one.test):
            return one
    return None


def numbers_of(roots: list[ast.stmt], statement: ast.stmt) -> set[str]:
    """The variables that hold the number of a step where a statement stands."""
    return {name for one in _way(roots, statement) for name in _numbers(one)}


def _way(roots: list[ast.stmt], statement: ast.stmt) -> list[ast.stmt]:
    """The statements around one, from the outermost to itself."""
    for root in roots:
        if root is statement:
            return [root]
        found = _way(list(_inner(root)), statement)
        if found:
            return [root, *found]
    return []


def _before(outer: ast.stmt, inner: ast.stmt) -> list[ast.If]:
    """The `if`s above a statement in the block that it stands in."""
    for field in ("body", "orelse"):
        block: list[ast.stmt] = getattr(outer, field, [])
        if inner in block:
            return [one for one in block[: block.index(inner)] if isinstance(one, ast.If)]
    return []


def _inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    for field in ("body", "orelse", "finalbody"):
        for one in getattr(statement, field, None) or []:
            if isinstance(one, ast.stmt):
                yield one


def _iterated(statement: ast.stmt) -> ast.Subscript | None:
    """`tracer.iter[…]` where a statement goes over the steps of a generation."""
    for head in _heads(statement):
        for node in ast.walk(head):
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "iter"
            ):
                return node
    return None


def _heads(statement: ast.stmt) -> list[ast.expr]:
    """What a `for` goes over, or a `with` opens."""
    if isinstance(statement, ast.For):
        return [statement.iter]
    return [item.context_expr for item in getattr(statement, "items", [])]


def _numbers(statement: ast.stmt) -> set[str]:
    """The variables that a loop over steps gives the step's number to."""
    if _iterated(statement) is None:
        return set()
    if isinstance(statement, ast.For):
        target: ast.AST = statement.target
        if isinstance(target, ast.Tuple) and "enumerate(" in ast.unparse(statement.iter):
            target = target.elts[0]
        return names(target)
    given = [i.optional_vars for i in getattr(statement, "items", []) if i.optional_vars]
    return {name for one in given for name in names(one)}


def _steps(statement: ast.stmt) -> range | None:
    """The steps that a loop goes over, where they are written out."""
    iterated = _iterated(statement)
    if iterated is None:
        return None
    index = iterated.slice
    if isinstance(index, ast.Slice):
        parts = [_constant(one) for one in (index.lower, index.upper, index.step)]
        given = [one for one in (index.lower, index.upper, index.step) if one is not None]
        if len(given) != sum(part is not None for part in parts):
            return None
        lower, upper, stride = parts
        return range(lower or 0, _MANY if upper is None else upper, stride or 1)
    number = _constant(index)
    return None if number is None else range(number, number + 1)


def _constant(node: ast.expr | None) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) and value >= 0 else None


def names(node: ast.AST) -> set[str]:
    """The variables in it."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _holds(test: ast.expr, numbers: set[str], step: int) -> bool | None:
    """Is a test on the number of the step true in this one? None where it is of more."""
    if not numbers & names(test):
        return None
    for node in ast.walk(test):
        small = isinstance(node, _ARITHMETIC) or (
            isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC)
        )
        own = isinstance(node, ast.Name) and node.id in numbers
        if not (small or own or isinstance(node, _PLAIN)):
            return None
    values = dict.fromkeys(numbers, step)
    code = compile(ast.fix_missing_locations(ast.Expression(test)), "<test>", "eval")
    try:
        return bool(eval(code, {"__builtins__": {}}, values))  # noqa: S307 - comparisons alone
    except (TypeError, ZeroDivisionError):
        return None

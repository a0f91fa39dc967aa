"""Single statements of a user's function: what each binds, takes and changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from typing import TypeGuard


def takes(index: ast.expr) -> bool:
    """Is it an index by number or a slice, and not a key?"""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(
        isinstance(one, (ast.Slice, ast.UnaryOp))
        or (isinstance(one, ast.Constant) and isinstance(one.value, int))
        for one in parts
    )


def views(index: ast.expr) -> bool:
    """Is it an index of numbers and slices alone, whose result is no copy?"""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        isinstance(one, (ast.Slice, ast.Constant))
        or (isinstance(one, ast.UnaryOp) and isinstance(one.operand, ast.Constant))
        for one in parts
    )


def matches(key: str, name: str) -> bool:
    """Is this the site's name of a returned key?"""
    plain = re.sub(r"\W", "_", key)
    return name == plain or name.startswith(f"{plain}_")


def bound(statement: ast.stmt) -> list[str]:
    """The variables that a statement fills: by assignment, or by appending to them."""
    if isinstance(statement, ast.Assign):
        every = [
            each
            for t in statement.targets
            for each in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])
        ]
        return [t.id for t in every if isinstance(t, ast.Name)] + [
            root.id
            for t in statement.targets
            if isinstance(t, ast.Subscript) and (root := _holder(t.value)) is not None
        ]
    if isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"append", "extend"}
        and (root := _holder(call.func.value)) is not None
    ):
        return [root.id]
    return []


def binds(statement: ast.stmt, name: str) -> bool:
    """Does it give a variable another value, and does not change the one that it has?"""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None and names_of(statement.target) == [name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(name in names_of(target) for target in targets)


#: Methods whose blocks nnsight runs, of a model or of a tracer.
_OPEN = frozenset({"trace", "generate", "invoke", "edit", "session"})


def opens_trace(node: ast.AST) -> ast.Call | None:
    """The call with which a statement opens a block that nnsight runs, where it does."""
    for item in node.items if isinstance(node, (ast.With, ast.AsyncWith)) else ():
        call = item.context_expr
        method = call.func if isinstance(call, ast.Call) else None
        opens = isinstance(method, ast.Attribute) and method.attr in _OPEN
        if opens and isinstance(call, ast.Call):
            return call
    return None


#: Methods that put something into a list or a mapping.
_FILLING = frozenset({"append", "extend", "update"})


def _held_by(value: ast.expr) -> ast.expr | None:
    """The list or the mapping of which an expression is an entry, by an index or `.setdefault`."""
    if isinstance(value, ast.Subscript):
        return value.value
    method = value.func if isinstance(value, ast.Call) else None
    sets = isinstance(method, ast.Attribute) and method.attr == "setdefault"
    return method.value if sets and isinstance(method, ast.Attribute) else None


def _holder(value: ast.expr) -> ast.Name | None:
    """The variable that something is held in: `held[a][b]`, `held.setdefault(a, [])`."""
    while (held := _held_by(value)) is not None:
        value = held
    return value if isinstance(value, ast.Name) else None


def filled_by(node: ast.AST) -> ast.Name | None:
    """The variable of a dict or a list that a node puts something into."""
    target: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        target = node.value
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _FILLING
    ):
        target = node.func.value
    return _holder(target) if target is not None else None


#: Methods whose result is a view of their object, or keeps or gathers it as it is.
_VIEWS = frozenset(
    {
        *("append", "extend", "update", "save", "detach", "items", "values"),
        *("view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "t"),
        *("expand", "narrow", "select", "unbind", "split", "chunk", "view_as", "expand_as"),
    }
)
_GATHERS = frozenset({"dict", "list", "tuple", "enumerate", "range", "len", "zip", "reversed"})


#: Methods that give what they are called on where it is of that type and place already: in float32
#: a value that is cast to it is no copy.
SAME = frozenset({"float", "to", "contiguous", "cpu"})


def computes(
    node: ast.AST, helpers: Collection[str] = (), views: Collection[str] = frozenset()
) -> bool:
    """Is anything in it a new value, not what is there as it is, a view of it or a collection? What
    a helper does stands in its own statements; `views` are more methods that make no new value.
    """
    for part in ast.walk(node):
        if isinstance(part, (ast.BinOp, ast.Compare)):
            return True
        if isinstance(part, ast.Call):
            function = part.func
            if isinstance(function, ast.Attribute) and function.attr in {*_VIEWS, *views}:
                continue
            if isinstance(function, ast.Name) and function.id in {*_GATHERS, *helpers}:
                continue
            return True
    return False


#: What makes a new value of another one, in words, and the signs of operators that do.
_MAKES: dict[type[ast.expr], str] = {
    ast.Call: "the call",
    ast.Subscript: "the index",
    ast.Attribute: "the attribute",
    ast.Compare: "the comparison",
    ast.List: "the list",
    ast.ListComp: "the list",
    ast.Dict: "the dict",
    ast.DictComp: "the dict",
    ast.IfExp: "the `if`",
}
_SIGNS = {
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Invert: "~",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
}

#: Methods that keep what their object holds.
_COPIES = frozenset({"clone", "detach", "contiguous", "to", "float", "double", "half", "bfloat16"})


def entry(value: ast.expr, name: str) -> ast.expr:
    """What a mapping that is written out has under a site's name, or under the end of it; for all
    else the value itself.
    """
    if not isinstance(value, ast.Dict):
        return value
    for key, item in zip(value.keys, value.values, strict=True):
        plain = re.sub(r"\W", "_", str(key.value)) if isinstance(key, ast.Constant) else ""
        if plain and f"_{name}".endswith(f"_{plain}"):
            return item
    return value


def kept(value: ast.expr) -> ast.expr:
    """What an expression is a view or a copy of, as it is: without the methods that make those."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _COPIES | {"save", "cpu", "tolist", "item", "numpy"}
    ):
        value = value.func.value
    return value


def arranges(node: ast.expr) -> bool:
    """Is it made of variables by indices, sums, products, views and copies alone?"""
    if isinstance(node, ast.Name):
        return True
    if isinstance(node, (ast.Subscript, ast.UnaryOp)):
        return arranges(node.value if isinstance(node, ast.Subscript) else node.operand)
    if isinstance(node, ast.BinOp):
        return arranges(node.left) or arranges(node.right)
    if isinstance(node, (ast.Tuple, ast.List)):
        return bool(node.elts) and all(map(arranges, node.elts))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _VIEWS | _COPIES and arranges(node.func.value)
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "sum" and bool(node.args)


def adds(value: ast.expr) -> bool:
    """Is it a sum, or a product, or a copy, a view or rows of one: a tensor of its own?"""
    if isinstance(value, ast.Subscript):
        return adds(value.value)
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute):
            return adds(value.func.value)
        return ast.unparse(value.func) == "sum"
    return isinstance(value, ast.BinOp)


def value_of(statement: ast.stmt) -> ast.expr | None:
    """What a statement gives to its target, or hands to a call."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return statement.value
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return statement.value.args[0] if statement.value.args else None
    return None


def in_place(statement: ast.stmt) -> bool:
    """Is it a call of a method that changes its object?"""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr.endswith("_")
        and not call.func.attr.endswith("__")
    )


#: Methods with a name like those, which change no number.
_NO_CHANGE = frozenset({"requires_grad_", "detach_", "share_memory_", "retain_grad_"})


def in_place_within(statement: ast.stmt) -> ast.Attribute | None:
    """The method that changes its object, of which a statement binds what it returns."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    for node in ast.walk(value) if value is not None else ():
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and re.fullmatch(r"\w*[^\W_]_", method.attr):
            return method if method.attr not in _NO_CHANGE else None
    return None


def head(statement: ast.stmt) -> str:
    """The text of a statement, of a loop what it goes over."""
    if isinstance(statement, ast.For):
        return f"{ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
    return ast.unparse(statement)


def target(statement: ast.stmt) -> ast.expr | None:
    """What a statement changes in place, or assigns to."""
    if isinstance(statement, ast.Assign):
        return statement.targets[0] if not isinstance(statement.targets[0], ast.Name) else None
    if isinstance(statement, ast.AugAssign):
        return statement.target
    if in_place(statement) and isinstance(statement, ast.Expr):
        call = statement.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            return call.func.value
    return None


def places_of(statement: ast.stmt) -> list[ast.expr]:
    """What says where a statement changes something: the indices of its target, and the arguments
    of a method that changes its object.
    """
    found: list[ast.expr] = []
    node = target(statement)
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(node, ast.Subscript):
            found.append(node.slice)
        node = node.func if isinstance(node, ast.Call) else node.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and in_place(statement):
        found += [*call.args, *(one.value for one in call.keywords)]
    return found


def still_in_place(before: str, after: str) -> str:
    """The line `after`, which came of `before`, with an index where only the former writes into a
    value and the latter would put another one in its place.
    """
    was, now = (only_statement(line) for line in (before, after))
    into, at = (target(one) if one is not None else None for one in (was, now))
    if isinstance(now, ast.Assign) and isinstance(now.targets[0], ast.Name):
        at = now.targets[0]
    if at is None or not isinstance(into, ast.Subscript) or isinstance(at, ast.Subscript):
        return after
    indent = after[: len(after) - len(after.lstrip())]
    text = after.strip().encode()
    return f"{indent}{text[: at.end_col_offset].decode()}[:]{text[at.end_col_offset :].decode()}"


def only_statement(line: str) -> ast.stmt | None:
    """The statement that a line is by itself, None where it is none."""
    try:
        [found] = ast.parse(line.strip()).body
    except (SyntaxError, ValueError):
        return None
    return found


def scales(statement: ast.stmt) -> bool:
    """Does it multiply what is there, or set it to zero?"""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, (ast.Mult, ast.Div))
    value = statement.value if isinstance(statement, ast.Assign) else None
    zero = isinstance(value, ast.Constant) and value.value == 0
    return zero or (in_place(statement) and "zero_" in ast.unparse(statement))


def single(made: ast.expr) -> bool:
    """Is it a tuple of one?"""
    return isinstance(made, ast.Tuple) and len(made.elts) == 1


def halves(part: ast.AST, target: ast.expr | None) -> dict[str, ast.expr]:
    """Which halves of a pair a part of a function uses, by their text: `a` or `b` where they were
    bound as `a, b = …`, `out[0]` or `out[1]` where it was `out = …`.
    """
    pair = names_of(target)
    found: dict[str, ast.expr] = {}
    for node in ast.walk(part):
        single = (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and [node.value.id] == pair
            and isinstance(node.slice, ast.Constant)
            and node.slice.value in (0, 1)
        )
        bound_twice = len(pair) == 2 and isinstance(node, ast.Name) and node.id in pair
        if isinstance(node, ast.expr) and (single or bound_twice):
            found[ast.unparse(node)] = node
    return found


def names_of(target: ast.expr | None) -> list[str]:
    """The variables of a target."""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return [one.id for one in parts if isinstance(one, ast.Name)]


def saved_before(value: ast.expr) -> tuple[list[ast.Call], str]:
    """The calls of `.save()` within an expression that makes another value of what they keep, and
    what makes that, in words; ([], "") where the whole is saved, or nothing is.
    """
    inner = [one for one in ast.walk(value) if saves(one)]
    if not inner or saves(value):
        return [], ""
    for kind, words in _MAKES.items():
        if isinstance(value, kind):
            return inner, words
    operator = getattr(value, "op", None)
    if operator is None:
        return [], ""
    return inner, f"the `{_SIGNS.get(type(operator), type(operator).__name__.lower())}`"


def saves(node: ast.AST) -> TypeGuard[ast.Call]:
    """Is it `….save()`?"""
    method = node.func if isinstance(node, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr == "save"


def sum_of(target: ast.expr) -> str:
    """The whole of a pair that is bound so."""
    names = names_of(target)
    first, second = names if len(names) == 2 else (f"{names[0]}[0]", f"{names[0]}[1]")
    return f"({first} + {second})"


def with_node(line: str, node: ast.expr | ast.stmt, text: str) -> str:
    """A line with this text in an expression's place, "" where that is on several lines."""
    if node.end_lineno != node.lineno or node.end_col_offset is None:
        return ""
    encoded = line.encode()
    begin, end = encoded[: node.col_offset], encoded[node.end_col_offset :]
    return f"{begin.decode()}{text}{end.decode()}"

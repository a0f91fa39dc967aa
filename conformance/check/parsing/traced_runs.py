"""Which trace of a function ran a sequence, and which call gave it its prompt: counted by the text,
where that says how many there are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from conformance.check.parsing.scopes import Scopes

#: The methods that open a trace.
_OPENS = frozenset({"trace", "generate"})

#: What goes over as many things as what it is given.
_AS_MANY = frozenset({"enumerate", "list", "reversed", "sorted", "tuple"})

#: What leaves a loop, or a turn of it, early.
_LEAVES = (ast.Break, ast.Continue, ast.Return)


@dataclass(frozen=True)
class _Run:
    """A call that gives prompts to the trace which a block opens: how many, None where that is not
    known.
    """

    block: ast.With
    call: ast.Call
    prompts: int | None


@dataclass(frozen=True)
class _Known:
    """What the text says of variables: which hold one prompt, which how many of something, and
    which of these groups, as pairs are.
    """

    texts: frozenset[str] = frozenset()
    lengths: Mapping[str, int] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()


def traces(scopes: Scopes, module: ast.Module) -> list[ast.With]:
    """The blocks of a function that open a trace, in the order of the text; [] where one is opened
    in another way, or by a helper.
    """
    return list(dict.fromkeys(one.block for one in _runs(scopes, module)))


def single(scopes: Scopes, module: ast.Module, block: ast.With) -> bool:
    """Is a block that opens a trace run once, for one prompt?"""
    return [one.prompts for one in _runs(scopes, module) if one.block is block] == [1]


def trace_of(scopes: Scopes, module: ast.Module, number: int, total: int) -> ast.With | None:
    """The block in which the sequence of this number was run, of so many; None where the text does
    not tell.
    """
    found = _run_of(_runs(scopes, module), number, total)
    blocks = list(dict.fromkeys(one.block for one in found))
    return blocks[0] if len(blocks) == 1 else None


def call_of(scopes: Scopes, module: ast.Module, number: int, total: int) -> ast.Call | None:
    """The call that gives the prompt of this number, of so many, where the text tells."""
    found = _run_of(_runs(scopes, module), number, total)
    calls = list(dict.fromkeys(one.call for one in found))
    return calls[0] if len(calls) == 1 else None


def _run_of(every: Sequence[_Run], number: int, total: int) -> list[_Run]:
    """What may have run a sequence. Of what is not known to run a number of them those before it
    are counted from the first, and those behind it from the last.
    """
    unknown = [n for n, one in enumerate(every) if one.prompts is None]
    first, last = (unknown[0], unknown[-1] + 1) if unknown else (len(every), len(every))
    before, between, after = (
        [one for one in part for _ in range(one.prompts or 1)]
        for part in (every[:first], every[first:last], every[last:])
    )
    left = total - len(before) - len(after)
    if not 0 <= number < total or left < 0 or (left and not between):
        return []
    if number < len(before):
        return [before[number]]
    if total - number <= len(after):
        return [after[number - total]]
    return between


def _runs(scopes: Scopes, module: ast.Module) -> list[_Run]:
    """All of a function's, each as often as it is made; [] where not all of them are known."""
    function = scopes.function
    if not isinstance(function, ast.FunctionDef) or len(function.args.args) > 1:
        return []  # it is called for every prompt, or for all of them
    given = [each for one in (*module.body, *scopes.statements) for each in _bound(one)]
    found = list(_within(function.body, _known(given, scopes), None))
    opened = {node for node in scopes.nodes() if _opens(node)}
    inside = {node for one in found for item in one.block.items for node in ast.walk(item)}
    return found if opened <= inside else []


def _known(given: Sequence[tuple[ast.Name, ast.expr]], scopes: Scopes) -> _Known:
    texts = {name.id for name, value in given if _is_text(value)}
    texts -= {name.id for name, value in given if not _is_text(value)}
    filled = {
        node.value.id
        for node in scopes.nodes()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    lengths: dict[str, int] = {}
    for name, value in given:
        length = _length(value, _Known(lengths=lengths))
        same = [one for other, one in given if other.id == name.id]
        if length is not None and len(same) == 1 and name.id not in filled:
            lengths[name.id] = length
    groups = (name.id for name, value in given if any(map(_is_group, _entries(value))))
    known = _Known(frozenset(texts), lengths, frozenset(groups))
    loops = [one for one in scopes.statements if isinstance(one, ast.For)]
    # A loop's variable holds the last of them behind it.
    last = {name for one in loops if _length(one.iter, known) for name in _given_one(one, known)}
    return replace(known, texts=known.texts | (last - known.lengths.keys()))


def _entries(value: ast.expr) -> list[ast.expr]:
    return value.elts if isinstance(value, (ast.List, ast.Tuple)) else []


def _is_group(value: ast.expr) -> bool:
    return bool(_entries(value)) and not _is_text(value)


def _bound(statement: ast.stmt) -> Iterator[tuple[ast.Name, ast.expr]]:
    """The variables that an assignment gives values to, each with its own."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    yield from ((name, given) for name, given in pairs if isinstance(name, ast.Name))


def _within(body: Sequence[ast.stmt], known: _Known, block: ast.With | None) -> Iterator[_Run]:
    for one in body:
        if isinstance(one, ast.FunctionDef):
            continue
        opened = _opened(one, block)
        if isinstance(one, ast.With) and opened is not None:
            own = one if _opens(opened) else block or one
            if opened.args:
                yield _Run(own, opened, _prompts(opened.args[0], known))
            else:
                # One that nothing is given to is still a trace.
                inner = list(_within(one.body, known, own))
                yield from inner or [_Run(own, opened, None)]
            continue
        yield from _inside(one, known, block)


def _inside(one: ast.stmt, known: _Known, block: ast.With | None) -> Iterator[_Run]:
    """Those of a statement that opens no trace itself."""
    if isinstance(one, ast.For):
        own = _given_one(one, known)
        found = list(_within(one.body, replace(known, texts=known.texts | own), block))
        leaves = any(isinstance(node, _LEAVES) for node in ast.walk(one))
        times = None if leaves or one.orelse else _length(one.iter, known)
        if times is None or any(each.prompts is None for each in found):
            yield from (replace(each, prompts=None) for each in found)
        else:
            yield from found * times
        return
    sure = isinstance(one, ast.With)
    for name in ("body", "orelse", "finalbody"):
        for each in _within(getattr(one, name, None) or [], known, block):
            yield each if sure else replace(each, prompts=None)


def _given_one(loop: ast.For, known: _Known) -> set[str]:
    """The variables of a loop of which each holds one thing, and no group of them."""
    over = {node.id for node in ast.walk(loop.iter) if isinstance(node, ast.Name)}
    taken_apart = isinstance(loop.target, ast.Tuple) and isinstance(loop.iter, ast.Name)
    if over & known.groups and not taken_apart:
        return set()
    return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}


def _opened(statement: ast.stmt, block: ast.With | None) -> ast.Call | None:
    """The call by which a `with` opens a trace, or in one an `invoke`."""
    items = statement.items if isinstance(statement, ast.With) else []
    heads = [item.context_expr for item in items]
    opened = [
        head
        for head in heads
        if isinstance(head, ast.Call) and (_opens(head) or (block is not None and _invokes(head)))
    ]
    return opened[0] if len(opened) == 1 else None


def _prompts(given: ast.expr, known: _Known) -> int | None:
    """How many prompts an argument is."""
    one_of_several = isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Constant)
    if _is_text(given) or (isinstance(given, ast.Name) and given.id in known.texts):
        return 1
    return 1 if one_of_several else _length(given, known)


def _length(value: ast.expr, known: _Known) -> int | None:
    """How many things a value goes over."""
    if isinstance(value, (ast.List, ast.Tuple)):
        starred = any(isinstance(one, ast.Starred) for one in value.elts)
        return None if starred else len(value.elts)
    if isinstance(value, ast.Name):
        return known.lengths.get(value.id)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        parts = [_length(one, known) for one in (value.left, value.right)]
        return None if None in parts else sum(one or 0 for one in parts)
    return _length_of_call(value, known) if isinstance(value, ast.Call) else None


def _length_of_call(call: ast.Call, known: _Known) -> int | None:
    called, given = getattr(call.func, "id", ""), call.args
    if called in _AS_MANY and given:
        return _length(given[0], known)
    if called == "zip" and given:
        every = [_length(one, known) for one in given]
        return None if None in every else min(one or 0 for one in every)
    return _number(given[0], known) if called == "range" and len(given) == 1 else None


def _number(value: ast.expr, known: _Known) -> int | None:
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return value.value
    counted = value.args if isinstance(value, ast.Call) and ast.unparse(value.func) == "len" else []
    return _length(counted[0], known) if counted else None


def _is_text(value: ast.expr | None) -> bool:
    """Is it one prompt: a text, or the ids of one?"""
    constant = isinstance(value, ast.Constant) and isinstance(value.value, str)
    numbers = [getattr(one, "value", None) for one in _entries(value)] if value else []
    ids = bool(numbers) and all(type(one) is int for one in numbers)
    return constant or ids or isinstance(value, ast.JoinedStr)


def _opens(node: ast.AST) -> bool:
    return _method(node) in _OPENS


def _invokes(node: ast.AST) -> bool:
    return _method(node) == "invoke"


def _method(node: ast.AST) -> str:
    method = node.func if isinstance(node, ast.Call) else None
    return method.attr if isinstance(method, ast.Attribute) else ""

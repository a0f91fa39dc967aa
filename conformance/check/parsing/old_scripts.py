"""A script that traces at the top of the file, as the function that a check calls.

Its statements are read in the order in which they run. Which of them go into the function follows
from the names that they bind and take: what traces, what is made of the model, and what either
needs. What is left out is said.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from conformance.check.parsing import statements

_IMPORTS = (ast.Import, ast.ImportFrom)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)

#: Through how many functions what is traced is followed.
_HOPS = 4


@dataclass(frozen=True)
class AsFunction:
    """What traces at the top of a file: where it begins, whether only a script's own run comes
    there, what to do about it in words, and the function, "" where none can be written.
    """

    line: int
    guarded: bool
    words: str
    function: str


@dataclass(frozen=True)
class _Part:
    """A statement at the top: the names that it binds, those whose values it changes, and those
    that it takes from around it. `guarded` are those that run only where the file is the script.
    """

    node: ast.stmt
    guarded: bool
    binds: frozenset[str]
    changes: frozenset[str]
    takes: frozenset[str]
    blocks: tuple[ast.Call, ...]

    @property
    def fixed(self) -> bool:
        """Is it an import that the file keeps at its top?"""
        return isinstance(self.node, _IMPORTS) and not self.guarded


def as_function(text: str, tree: ast.Module) -> AsFunction | None:
    """The statements that trace at the top, as the body of `hf(model)`; None where none does."""
    parts = [_part(node, guarded) for node, guarded in _top(tree)]
    tracing = _tracing(parts)
    traced = [n for n, part in enumerate(parts) if part.blocks or _calls(part, tracing)]
    if not traced:
        return None
    begin = parts[traced[0]]
    line = begin.blocks[0].lineno if begin.blocks else begin.node.lineno
    guarded = all(parts[n].guarded for n in traced)
    objects = list(dict.fromkeys(one for n in traced for one in _objects(parts[n], tracing)))
    root = objects[0] if objects else ""
    if not root.isidentifier():
        here = f"`{root}` here" if root else "traced in what this line calls"
        words = f"make it one, `hf(model)`: a check hands to it what is {here}"
        return AsFunction(line, guarded, words, "")
    loads = {n for n, part in enumerate(parts) if root in part.binds and n not in traced}
    moved = _moved(parts, traced, root, loads)
    body = [parts[n] for n in sorted(moved)]
    returned = _returned(body, frozenset(tracing))
    words = _words(parts, moved, loads, traced, objects, returned)
    verbatim = _within_texts(tree)
    lines = [f"def hf({root}):"]
    for part in body:
        lines += _indented(text, part.node, verbatim)
    entries = ", ".join(f'"{name}": {name}' for name in returned)
    return AsFunction(line, guarded, words, "\n".join([*lines, f"    return {{{entries}}}"]))


def _top(tree: ast.Module) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements at the top, with those that run where the file is the script."""
    for node in tree.body:
        test = node.test if isinstance(node, ast.If) and not node.orelse else None
        if test is not None and ast.unparse(test) == "__name__ == '__main__'":
            yield from ((one, True) for one in getattr(node, "body", []))
        else:
            yield node, False


def _part(node: ast.stmt, guarded: bool) -> _Part:
    return _Part(
        node,
        guarded,
        frozenset(_binds(node)),
        frozenset(_changes(node)),
        frozenset(_takes(node)),
        tuple(_blocks(node)),
    )


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """What runs where a statement does: nothing of the functions that it defines."""
    yield node
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _executed(child)


def _blocks(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that open the outermost blocks of a trace in a statement."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return
    opened = statements.opens_trace(node)
    if opened is not None:
        yield opened
        return
    for child in ast.iter_child_nodes(node):
        yield from _blocks(child)


def _object(call: ast.Call) -> str:
    """What is traced, as the text has it."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _tracing(parts: list[_Part]) -> dict[str, _Part]:
    """The functions at the top that trace, or call one that does, by name."""
    functions = [one for one in parts if isinstance(one.node, ast.FunctionDef)]
    found = {
        one.node.name: one
        for one in functions
        if isinstance(one.node, ast.FunctionDef)
        and any(statements.opens_trace(node) for node in ast.walk(one.node))
    }
    for _ in functions:
        found |= {
            one.node.name: one
            for one in functions
            if isinstance(one.node, ast.FunctionDef) and one.takes & found.keys()
        }
    return found


def _calls(part: _Part, tracing: Mapping[str, _Part]) -> bool:
    """Does a statement call a function that traces, where it runs?"""
    return not isinstance(part.node, _DEFINED) and bool(part.takes & tracing.keys())


def _objects(part: _Part, tracing: Mapping[str, _Part]) -> Iterator[str]:
    """What a statement traces, as the text has it: itself, or by the functions that it calls. What
    such a one makes itself is not known here.
    """
    yield from map(_object, part.blocks)
    if isinstance(part.node, _DEFINED):
        return
    for call, function in _traced_calls(part.node, tracing):
        yield from _objects_of(call, function, tracing, hops=_HOPS)


def _traced_calls(node: ast.AST, tracing: Mapping[str, _Part]) -> Iterator[tuple[ast.Call, _Part]]:
    """The calls in a node of functions that trace."""
    for call in ast.walk(node):
        function = call.func if isinstance(call, ast.Call) else None
        name = function.id if isinstance(function, ast.Name) else ""
        if isinstance(call, ast.Call) and name in tracing:
            yield call, tracing[name]


def _objects_of(
    call: ast.Call, function: _Part, tracing: Mapping[str, _Part], hops: int
) -> Iterator[str]:
    """What a call of a function traces: a name of the file's, or what the call gives to it."""
    node = function.node
    if not isinstance(node, ast.FunctionDef) or not hops:
        return
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    given = dict(zip(names, call.args, strict=False))
    given |= {one.arg: one.value for one in call.keywords if one.arg}
    found = [_object(one) for statement in node.body for one in _blocks(statement)]
    for inner, called in _traced_calls(node, tracing):
        found += _objects_of(inner, called, tracing, hops - 1)
    for name in found:
        if name in given:
            yield ast.unparse(given[name])
        elif name in function.takes:
            yield name


def _binds(node: ast.AST) -> Iterator[str]:
    """The names that a statement gives a value, or takes it from, at the top of the file."""
    for one in _executed_outside_comprehensions(node):
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            yield one.id
        elif isinstance(one, _DEFINED):
            yield one.name
        elif isinstance(one, ast.alias):
            yield one.asname or one.name.partition(".")[0]
        elif isinstance(one, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and one.name:
            yield one.name


def _executed_outside_comprehensions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.comprehension) and child is node.target:
            continue
        yield from _executed_outside_comprehensions(child)


def _changes(node: ast.AST) -> Iterator[str]:
    """The names whose values a statement changes, and does not replace: by an index or an
    attribute that it assigns to, or by a call of their method that gives nothing back.
    """
    for one in _executed(node):
        changed: ast.AST | None = None
        if isinstance(one, (ast.Subscript, ast.Attribute)) and not isinstance(one.ctx, ast.Load):
            changed = one
        elif isinstance(one, ast.AugAssign):
            changed = one.target
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            method = one.value.func
            changed = method if isinstance(method, ast.Attribute) else None
        while isinstance(changed, (ast.Subscript, ast.Attribute)):
            changed = changed.value
        if isinstance(changed, ast.Name):
            yield changed.id


def _takes(node: ast.AST) -> set[str]:
    """The names that a node takes from around it."""
    if isinstance(node, ast.Name):
        return set() if isinstance(node.ctx, ast.Store) else {node.id}
    if isinstance(node, _FUNCTIONS):
        body = node.body if isinstance(node.body, list) else [node.body]
        around = {
            name
            for child in ast.iter_child_nodes(node)
            if child not in body
            for name in _takes(child)
        }
        given = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        shared = {
            name for one in ast.walk(node) if isinstance(one, ast.Global) for name in one.names
        }
        own = {name for one in body for name in _binds(one)} - shared
        taken = {name for one in body for name in _takes(one)}
        return around | (taken - given - own) | shared
    inside = {name for child in ast.iter_child_nodes(node) for name in _takes(child)}
    if isinstance(node, _COMPREHENSIONS):
        own = {name for one in node.generators for name in _stored(one.target)}
        return (inside - own) | _takes(node.generators[0].iter)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return (inside - set(_stored(node.target))) | _takes(node.iter)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return inside | {node.target.id}
    return inside


def _stored(target: ast.AST) -> Iterator[str]:
    return (
        one.id
        for one in ast.walk(target)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    )


def _moved(parts: list[_Part], traced: list[int], root: str, loads: set[int]) -> set[int]:
    """Which statements go into the function. Those from the first trace to the last do, as they run
    in this order; and each above that takes what a moved one makes, makes what a moved one changes,
    or changes what a moved one above has taken.
    """
    last = traced[-1]
    model = {root, *_names(parts[n].binds for n in loads)}
    stay = loads | {n for n, part in enumerate(parts) if part.fixed}
    moved = {n for n in range(traced[0], last + 1) if n not in stay} | set(traced)
    while True:
        rest = [n for n in range(last) if n not in moved and n not in stay]
        more = {n for n in rest if _goes_with(parts, n, moved, model)}
        if not more:
            return moved
        moved |= more


def _goes_with(parts: list[_Part], n: int, moved: set[int], model: set[str]) -> bool:
    """Does a statement go where these are? `model` are the names that are bound with the model."""
    one = parts[n]
    made = {
        name for m in moved if m < n or isinstance(one.node, _DEFINED) for name in parts[m].binds
    }
    taken = _names(parts[m].takes for m in moved)
    changed = _names(parts[m].binds | parts[m].changes for m in moved)
    before = _names(parts[m].takes for m in moved if m < n)
    return bool(
        one.takes & (model | made)
        or one.binds & changed & taken
        or (one.binds | one.changes) & before
        or (one.guarded and one.binds & taken)
    )


def _names(sets: Iterable[frozenset[str]]) -> set[str]:
    return {name for each in sets for name in each}


def _left(parts: list[_Part], moved: set[int], root: str, last: int) -> list[int]:
    """The statements below the last trace that use what is in the function, or what such a one
    makes, or that give a name another value that the function takes.
    """
    gone = {root, *_names(parts[n].binds for n in moved)}
    taken = _names(parts[n].takes for n in moved)
    found = []
    for n in range(last + 1, len(parts)):
        if not parts[n].fixed and (parts[n].takes & gone or parts[n].binds & taken):
            found.append(n)
            gone |= parts[n].binds
    return found


def _returned(body: list[_Part], tracing: Collection[str]) -> list[str]:
    """What is saved or given by functions that trace, and the lists and dicts that it is put into
    once it is home. A name that a loop saves and puts into one has only the last value of it, and
    is not returned itself.
    """
    here = _names(part.binds | part.changes for part in body)
    saved = list(dict.fromkeys(name for part in body for name in _saved(part.node, tracing)))
    saved = [name for name in saved if name in here]
    gathered: list[str] = []
    last_only: set[str] = set()
    for part in body:
        for filled, value, looped in _fills(part.node, looped=False):
            if _takes(value) & {*saved, *gathered}:
                gathered.append(filled)
                whole = statements.kept(value)
                last_only |= {whole.id} if looped and isinstance(whole, ast.Name) else set()
    every = dict.fromkeys([*saved, *gathered])
    return [name for name in every if name not in last_only - set(gathered)]


def _saved(node: ast.stmt, tracing: Collection[str]) -> list[str]:
    """The variables to which something saved is assigned or added, and those that are saved in a
    statement of its own, in the order of the text.
    """

    def saves(value: ast.expr) -> bool:
        return any(_is_save(one, tracing) for one in ast.walk(value))

    found: list[str] = []
    for child in _executed(node):
        if isinstance(child, ast.Assign) and saves(child.value):
            parts = (one.value if isinstance(one, ast.Subscript) else one for one in child.targets)
            found += [name for one in parts for name in statements.names_of(one)]
        elif isinstance(child, ast.AnnAssign) and child.value is not None and saves(child.value):
            found += statements.names_of(child.target)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            filled = child.func.value
            adds = child.func.attr == "append" and any(map(saves, child.args))
            found += [filled.id] if adds and isinstance(filled, ast.Name) else []
        elif isinstance(child, ast.Expr) and _is_save(child.value, ()):
            call = child.value
            method = call.func if isinstance(call, ast.Call) else None
            kept = method.value if isinstance(method, ast.Attribute) else None
            found += statements.names_of(kept)
    return list(dict.fromkeys(found))


def _fills(node: ast.AST, *, looped: bool) -> Iterator[tuple[str, ast.expr, bool]]:
    """What is put into a list or a dict outside of the blocks: its name, the value, and whether a
    loop does.
    """
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) or statements.opens_trace(node) is not None:
        return
    if isinstance(node, ast.Assign):
        for target in node.targets:
            into = statements.filled_by(target)
            if into is not None:
                yield into.id, node.value, looped
    elif isinstance(node, ast.Call) and node.args:
        into = statements.filled_by(node)
        if into is not None:
            yield into.id, node.args[0], looped
    for child in ast.iter_child_nodes(node):
        yield from _fills(child, looped=looped or isinstance(node, _LOOPS))


def _is_save(node: ast.AST, tracing: Collection[str]) -> bool:
    """Is it `….save()`, `save(…)`, or a call of one of these functions, which trace?"""
    function = node.func if isinstance(node, ast.Call) else None
    return (isinstance(function, ast.Attribute) and function.attr == "save") or (
        isinstance(function, ast.Name) and function.id in {"save", *tracing}
    )


def _words(
    parts: list[_Part],
    moved: set[int],
    loads: set[int],
    traced: list[int],
    objects: list[str],
    returned: list[str],
) -> str:
    """What to do, with the lines: what the function is made of, and all that it leaves out."""
    said = [f"make it one, in the place of {_lines(parts, moved)}"]
    above = {n for n in loads if n < traced[0]}
    where = f" ({_lines(parts, above)})" if above else ""
    said.append(f"leave out what loads the model{where}, which a check hands to it")
    between = {n for n in loads if traced[0] < n < traced[-1]}
    inside = {n for n in traced if objects[0] in parts[n].binds}
    if between or inside:
        again = _lines(parts, between | inside)
        said.append(
            f"`{objects[0]}` is bound again on {again}, and a check hands over one model: make a "
            "file for each"
        )
    others = [f"`{one}`" for one in objects[1:]]
    if others:
        said.append(
            f"{', '.join(others)} is traced, too, and a check hands over `{objects[0]}` alone"
        )
    made = _names(part.binds for n, part in enumerate(parts) if n not in loads)
    lost = _names(parts[n].binds for n in loads) - made - {objects[0]}
    lost &= _names(parts[n].takes for n in moved)
    if lost:
        names = ", ".join(f"`{name}`" for name in sorted(lost))
        said.append(f"{names} is bound where the model is: make it of `{objects[0]}` there")
    left = _left(parts, moved, objects[0], traced[-1])
    if left:
        said.append(
            f"leave out what comes after the last trace ({_lines(parts, left)}): what it uses is "
            "made in the function"
        )
    if not returned:
        said.append("nothing is saved: return what is to be compared")
    return "; ".join(said)


def _lines(parts: list[_Part], which: Iterable[int]) -> str:
    """The lines of these statements, in words."""
    spans: list[tuple[int, int]] = []
    follows = -1
    for n in sorted(which):
        node = parts[n].node
        first, last = _first_line(node), node.end_lineno or node.lineno
        if n == follows:
            spans[-1] = spans[-1][0], last
        else:
            spans.append((first, last))
        follows = n + 1
    texts = [f"{a}-{b}" if b > a else f"{a}" for a, b in spans]
    plural = len(spans) > 1 or "-" in texts[0]
    return f"line{'s' if plural else ''} {', '.join(texts)}"


def _first_line(node: ast.stmt) -> int:
    """Where a statement begins, with what decorates it."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _within_texts(tree: ast.Module) -> frozenset[int]:
    """The lines that begin within a text: their indentation is a part of it."""
    return frozenset(
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
        for line in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    )


def _indented(text: str, node: ast.stmt, verbatim: frozenset[int]) -> list[str]:
    """A statement's lines in the body of a function."""
    lines = text.split("\n")
    first, last = _first_line(node), node.end_lineno or node.lineno
    taken = [lines[n - 1] for n in range(first, last + 1)]
    taken[-1] = taken[-1].encode()[: node.end_col_offset].decode()
    taken[0] = taken[0].encode()[node.col_offset :].decode()
    for n, line in enumerate(taken[1:], first + 1):
        if n not in verbatim:
            taken[n - first] = line[min(node.col_offset, len(line) - len(line.lstrip())) :]
    return [
        line if n in verbatim or not line.strip() else f"    {line}"
        for n, line in enumerate(taken, first)
    ]

"""Where a port reads `model.logits` by another index than is meant: on vLLM they are the last
token's, [1, vocabulary], and what `hf` takes of all tokens' by `[0, -1]` is `[0]` there. A line
that fails may be right, and be handed another thing: by the function that calls it, or by a name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.check.advice.edits import Edit, replaced
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.module_values import of_axes

_WHY = "on vLLM `model.logits` are the last token's, [1, vocabulary]"

#: Modules whose output on transformers are the logits.
_HEADS = frozenset({"lm_head", "embed_out"})

#: Through how many names a value is followed.
_HOPS = 6


@dataclass(frozen=True)
class _Read:
    """Logits as they are read in a statement: `node` is `base` with an `index` behind it."""

    statement: ast.stmt
    logits: ast.expr
    base: ast.expr
    node: ast.expr
    index: str

    @property
    def token(self) -> str:
        """What the index takes where transformers' logits have the tokens, "" for no index."""
        parts, _ = of_axes(self.index)
        return parts[1] if len(parts) > 1 and parts[0] in {"0", ":"} else ""

    @property
    def there(self) -> str:
        """The index without the token."""
        parts, behind = of_axes(self.index)
        rest = [parts[0], *parts[2:]]
        while rest and rest[-1] == ":":
            rest.pop()
        return (f"[{', '.join(rest)}]" if rest else "") + behind


def misread(places: Places, line: int) -> list[Edit]:
    """The lines of `vllm` that read the logits as only transformers' can be, by what `hf` has in
    their place: of one that failed, or handed them on, or of what it uses. That one is the first.
    """
    theirs = Places(places.file, "hf", dual=False)
    every = [one for each in theirs.scopes.statements for one in _reads(each)]
    behind = _behind(places, line)
    pairs = [*_handed(places, theirs)]
    pairs += [
        (one, every)
        for each in places.scopes.statements
        for one in _reads(each)
        if one.token or (each in behind and _alike(theirs, behind[0]))
    ]
    found: dict[int, Edit] = {}
    for read, meant in pairs:
        edit = _edit(places, read, meant)
        if edit is not None:
            found.setdefault(edit.line, edit)
    near = {n for one in behind for n in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    edits = sorted(found.values(), key=lambda one: (one.line not in near, one.line))
    return edits if edits and edits[0].line in near else []


def _edit(places: Places, read: _Read, meant: Sequence[_Read]) -> Edit | None:
    """The line with the index that is meant, None where it has that."""
    tokens = {one.token for one in meant if one.token}
    rights = {one.there for one in meant if one.token}
    if read.token in tokens:
        right, hf = read.there, read.index
    elif not read.index and len(rights) == 1 and all(one.token for one in meant):
        right, hf = next(iter(rights)), meant[0].index
    else:
        return None
    if right == read.index:
        return None
    after = replaced(places, read.node, f"{places.file.operand(read.base)}{right}")
    why = f"{_WHY}: what `hf` takes by `{hf}` is {f'`{right}`' if right else 'all of it'} there"
    return Edit(read.node.lineno, places.file.line(read.node.lineno), after, why)


def _handed(places: Places, theirs: Places) -> Iterator[tuple[_Read, list[_Read]]]:
    """The logits that are handed to a function which `hf` calls, too, with those that it hands to
    the same parameter.
    """
    meant: dict[tuple[str, str], list[_Read]] = {}
    for place, read in _given(theirs):
        meant.setdefault(place, []).append(read)
    for place, read in _given(places):
        if place in meant:
            yield read, meant[place]


def _given(places: Places) -> Iterator[tuple[tuple[str, str], _Read]]:
    """The logits that a function's own calls hand on, by the name called and of the parameter."""
    for statement in places.scopes.statements:
        if hasattr(statement, "body") or not any(n is statement for n in ast.walk(places.function)):
            continue
        for call in ast.walk(statement):
            function = call.func if isinstance(call, ast.Call) else None
            if not isinstance(call, ast.Call) or not isinstance(function, ast.Name):
                continue
            for parameter, value in _arguments(places, function.id, call):
                read = _read(places, value, statement, _HOPS)
                if read is not None:
                    yield (function.id, parameter), read


def _arguments(places: Places, name: str, call: ast.Call) -> list[tuple[str, ast.expr]]:
    """What a call gives to the parameters of a function of the file."""
    helper = places.scopes.helpers.get(name)
    if helper is None:
        return []
    names = [one.arg for one in (*helper.args.posonlyargs, *helper.args.args)]
    by_name = [(one.arg, one.value) for one in call.keywords if one.arg]
    return [*zip(names, call.args, strict=False), *by_name]


def _read(places: Places, value: ast.expr, near: ast.stmt, hops: int) -> _Read | None:
    """The logits that an expression is, also by a name."""
    found = _of(value, near)
    bare = statements.kept(value)
    if found is not None or not isinstance(bare, ast.Name) or not hops:
        return found
    made = places.scopes.binding(bare.id, near)
    if not isinstance(made, ast.Assign) or made is near or len(made.targets) > 1:
        return None
    own = isinstance(made.targets[0], ast.Name)
    return _read(places, made.value, made, hops - 1) if own else None


def _reads(statement: ast.stmt) -> list[_Read]:
    """The logits that a statement reads, each with all of the indices behind it."""
    found: dict[int, _Read] = {}
    for node in ast.walk(statement) if not hasattr(statement, "body") else ():
        read = _of(node, statement) if isinstance(node, (ast.Attribute, ast.Subscript)) else None
        if read is not None:
            found.setdefault(id(read.logits), read)
    return list(found.values())


def _of(value: ast.expr, near: ast.stmt) -> _Read | None:
    """The logits that an expression is, with indices or a copy of them."""
    node = statements.kept(value)
    base, index = node, ""
    while isinstance(base, ast.Subscript):
        text = ast.unparse(base.slice)
        index = f"[{text[1:-1] if text.startswith('(') else text}]{index}"
        last, base = base.value, statements.kept(base.value)
        if not isinstance(base, ast.Subscript):
            return _Read(near, base, last, node, index) if _is_logits(base) else None
    return _Read(near, base, base, base, "") if _is_logits(base) else None


def _is_logits(value: ast.expr) -> bool:
    """`model.logits`, `model.lm_head.output`, `model.output.logits`?"""
    if not isinstance(value, ast.Attribute):
        return False
    of = value.value
    head = isinstance(of, ast.Attribute) and of.attr in _HEADS
    return value.attr == "logits" or (value.attr == "output" and head)


def _behind(places: Places, line: int) -> list[ast.stmt]:
    """The statement of a line, and those that make what it uses."""
    every = [one for one in places.scopes.statements if not hasattr(one, "body")]
    found = [one for one in every if one.lineno <= line <= (one.end_lineno or one.lineno)][-1:]
    for statement in found:
        for name in places.scopes.names(statement):
            makers = places.scopes.makers(name, statement)
            found += [one for one in makers if one not in found and not hasattr(one, "body")]
    return found


def _alike(theirs: Places, statement: ast.stmt) -> bool:
    """Has `hf` the same statement, so that it is right for what `hf` gives it?"""
    return any(ast.unparse(one) == ast.unparse(statement) for one in theirs.scopes.statements)

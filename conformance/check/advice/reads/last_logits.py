"""Where a port takes a token of `model.logits` by an index: on vLLM they are the last token's."""

from __future__ import annotations

import ast

from conformance.check.advice.edits import LAST_LOGITS, Edit, replaced
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Places

#: With so many an index takes a prompt, a token and words.
_AXES = 3

#: Through how many names and helpers a value is followed.
_HOPS = 6


def indexed(places: Places, line: int | None) -> Edit | None:
    """The line, where it takes a token of the model's logits: without that index in the function
    itself. In a helper the line is right for what `hf` hands to it, and stays.
    """
    for node in places.scopes.nodes():
        index = node.slice if isinstance(node, ast.Subscript) else None
        if not isinstance(node, ast.Subscript) or not isinstance(index, ast.Tuple):
            continue
        here = line is not None and node.lineno <= line <= (node.end_lineno or node.lineno)
        if not here or len(index.elts) != _AXES:
            continue
        statement = places.scopes.statement_of(node)
        given = _given(places, node.value, statement, _HOPS)
        if given is None:
            continue
        before = places.file.line(node.lineno)
        own = any(one is node for one in ast.walk(places.function))
        if not own:
            why = f"{LAST_LOGITS}. Line {given} hands them to a function that does"
            return Edit(node.lineno, before, "", why)
        first, _, last = index.elts
        left = ", ".join(map(places.file.segment, (first, last)))
        after = replaced(places, node, f"{places.file.operand(node.value)}[{left}]")
        return Edit(node.lineno, before, after, LAST_LOGITS)
    return None


def _given(places: Places, value: ast.expr, near: ast.stmt, hops: int) -> int | None:
    """The line that takes the logits which an expression is, None where it is another thing."""
    value = statements.kept(value)
    if isinstance(value, ast.Attribute):
        of_model = isinstance(value.value, ast.Name) and value.attr == "logits"
        return near.lineno if of_model else None
    if not isinstance(value, ast.Name) or not hops:
        return None
    handed = places.scopes.arguments(value.id, near)
    made = [(statements.value_of(one), one) for one in places.scopes.makers(value.id, near)]
    for source, statement in handed or made:
        if source is not None and statement is not near:
            found = _given(places, source, statement, hops - 1)
            if found is not None:
                return found
    return None

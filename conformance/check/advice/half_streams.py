"""Reads of half a residual stream on the way to a write: on vLLM a layer of many families returns
(MLP output, residual), of which one alone is no value of the stream.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from conformance.check.advice.edits import SUM, Edit, by_adapter, is_layer, replaced
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Access, Places


def half_reads(places: Places, write: Access) -> list[Edit]:
    """The lines that read one half alone of what this write writes, with the sum in its place."""
    way = places.way_to(write)
    own = places.block(write.statement), write.module
    found: dict[int, Edit] = {}
    for statement in way[:-1]:
        for access in places.accesses(statement):
            block = places.block(statement)
            # A layer's own halves, changed and put back, are no value from elsewhere.
            if access.value != "output" or not is_layer(access) or own == (block, access.module):
                continue
            near = [one for one in way if places.block(one) in {block, None}]
            for edit in _edits(places, access, near):
                found.setdefault(edit.line, edit)
    return [found[line] for line in sorted(found)]


def _edits(places: Places, access: Access, near: Sequence[ast.stmt]) -> Iterator[Edit]:
    """The edits for one read; `near` are the statements that may hold the other half."""
    adapted = by_adapter(places, access)
    if adapted is not None:
        yield adapted
    elif access.index in {0, 1}:
        others = {
            one.index
            for each in near
            for one in places.accesses(each)
            if one.module == access.module
        }
        if others != {0, 1}:
            whole = f"({access.module}.output[0] + {access.module}.output[1])"
            before = places.file.line(access.line)
            yield Edit(access.line, before, replaced(places, access.node, whole), SUM)
    elif access.index is None and isinstance(access.statement, ast.Assign):
        target = access.statement.targets[0]
        used = [
            halves
            for each in near
            if each is not access.statement
            for halves in [places.halves(statements.value_of(each) or each, access.statement)]
        ]
        if len({name for halves in used for name in halves}) == 1:
            for node in (one for halves in used for one in halves.values()):
                before = places.file.line(node.lineno)
                whole = statements.sum_of(target)
                yield Edit(node.lineno, before, statements.with_node(before, node, whole), SUM)

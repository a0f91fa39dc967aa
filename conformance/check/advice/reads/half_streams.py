"""Reads of half a residual stream on the way to a write: on vLLM a layer of many families returns
(MLP output, residual), of which one alone is no value of the stream.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

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


def own_half_reads(places: Places, write: Access) -> list[Edit]:
    """The lines that read one half of the very stream that this write writes, where `hf` computes
    from all of it: with the sum in its place.
    """
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    if theirs is None or not is_layer(write) or not _from_its_own(theirs):
        return []
    used = _used(places, write)
    if len({one.index for one in used}) != 1 or used[0].index not in {0, 1}:
        return []
    near = [one.statement for one in used if one.statement is not write.statement]
    found: dict[int, Edit] = {}
    for access in used:
        for edit in _edits(places, access, near):
            found.setdefault(edit.line, _everywhere(places, access, edit))
    return [found[line] for line in sorted(found)]


def _from_its_own(theirs: Places) -> bool:
    """Does `hf` compute what it writes to a layer from what that layer returned?"""
    return any(map(is_layer, (one for write in theirs.writes() for one in _used(theirs, write))))


def _used(places: Places, write: Access) -> list[Access]:
    """What the value of a write is computed from of the very output that it writes to: of a pair
    without the half that it hands on.
    """
    value = statements.value_of(write.statement)
    handed_on = value.elts if isinstance(value, ast.Tuple) else []
    own = [
        one
        for one in places.accesses(write.statement)
        if value is not None
        and any(one.node is node for node in ast.walk(value))
        and not any(one.node is part for part in handed_on)
    ]
    behind = [one for one in places.way_to(write, index=False) if one is not write.statement]
    block = places.block(write.statement)
    read = [each for one in behind if places.block(one) is block for each in places.accesses(one)]
    place = write.module, "output"
    return [one for one in (*read, *own) if (one.module, one.value) == place]


def _everywhere(places: Places, access: Access, edit: Edit) -> Edit:
    """The edit of one read, for all that its line reads of the same half."""
    value = statements.value_of(access.statement)
    text = places.file.segment(value) if value is not None else ""
    half, whole = places.file.segment(access.node), _whole(access)
    if value is None or text.count(half) < 2:
        return edit
    return replace(edit, after=replaced(places, value, text.replace(half, whole)))


def _whole(access: Access) -> str:
    return f"({access.module}.output[0] + {access.module}.output[1])"


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
            before = places.file.line(access.line)
            yield Edit(access.line, before, replaced(places, access.node, _whole(access)), SUM)
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

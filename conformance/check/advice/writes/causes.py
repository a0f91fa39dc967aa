"""Where the layers part: the write, and before it what its value is made from where that is read
in the wrong place. Then the read is the cause, and the write follows from it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from conformance.check.advice.edits import SUM, Edit, is_layer, shifted
from conformance.check.advice.finding import Finding, once
from conformance.check.advice.reads import batch_axis
from conformance.check.advice.reads.computed_values import made_by, made_otherwise
from conformance.check.advice.reads.half_streams import half_reads, own_half_reads
from conformance.check.advice.reads.other_sources import (
    other_reads,
    other_sources,
    other_target,
)
from conformance.check.advice.reads.unlike_lines import beside, unlike_lines
from conformance.check.advice.unlike_names import unlike_names
from conformance.check.advice.writes.write_edits import (
    counterpart,
    in_its_place,
    write_edit,
    written_here,
)
from conformance.check.parsing.dataflow import Access, Places
from conformance.check.values.divergence import BEFORE, Parting

_NONE: Mapping[str, Finding] = {}

#: What a write does that is made with another value, or goes to another place.
_BY_NAMES = frozenset({"", "scaled", "other-layer", "other-tokens", "too-many", "partial"})


#: What a write does that is made at another layer, or for other prompts.
_BY_PLACE = frozenset({"dropped", "other-layer"})


def ordered(
    part: Parting,
    places: Places,
    reads: Sequence[Finding],
    *,
    dual: bool,
    unknown: Mapping[str, Finding] = _NONE,
) -> tuple[Finding, ...]:
    """What to say where the layers part, `reads` being values that are read in the wrong place:
    first what the write's value, or its place, comes from. `dual`: layers there return a stream in
    two halves; `unknown` are the values of which only is known that they differ, by name.
    """
    writes = written_here(places, part)
    sources = _sources(part, places, writes) if dual else []
    sources = [*_axes(places, writes), *sources] or _neighbours(part, places, writes)
    known = part.given is not None and not part.given.again
    if not sources and not part.kind and not known:
        sources = [one for write in writes for one in other_sources(places, write)]
    sources = sources or _of_the_same_text(part, places, writes)
    sources, reads = _told_by_numbers(sources, reads)
    edits = [one.edit for one in sources]
    same = [replace(one, kind=sources[0].kind) for one in reads if one.edit in edits]
    way = {line for write in writes for line in _lines(places.way_to(write))}
    others = [one for one in reads if one.edit not in edits]
    before = [one for one in others if one.edit is not None and one.edit.line in way]
    after = [one for one in others if one not in before]
    causes = once([*sources, *same, *before]) or once(_used(places, writes, unknown))
    if not causes and not known and part.kind in _BY_NAMES:
        causes = tuple(_made_otherwise(places, writes))
    if not causes and part.kind in _BY_PLACE:
        causes = once(_around(places, writes))
    first = _written(part, places, follows=bool(causes))
    others = _other_writes(places, writes, first.edit)
    return (*causes, first, *others, *once(after))


def _made_otherwise(places: Places, writes: Sequence[Access]) -> list[Finding]:
    """The names that these writes are made with otherwise than in `hf`, each once."""
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    found: dict[Edit | None, Finding] = {}
    for write in writes if theirs is not None else ():
        own = counterpart(places, theirs, write) if theirs is not None else None
        if own is not None and theirs is not None:
            begin = f"line {write.line} writes"
            for one in unlike_names(places, theirs, write.statement, own.statement, begin):
                found.setdefault(one.edit, one)
    return list(found.values())


def _around(places: Places, writes: Sequence[Access]) -> list[Finding]:
    """What says where, and for which prompts, these writes are made, and is another thing than in
    `hf`: the module's name, the loops around them, conditions that `hf` has not; each once.
    """
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    found: dict[object, Finding] = {}
    for write in writes if theirs is not None else ():
        own = counterpart(places, theirs, write) if theirs is not None else None
        if own is None or theirs is None:
            continue
        every = [*other_target(places, theirs, write, own), *_guards(places, theirs, write, own)]
        for one in every:
            if one.edit is not None and one.edit.line != write.line:  # that is the write's own
                found.setdefault(one.edit, one)
    return list(found.values())


def _guards(places: Places, theirs: Places, write: Access, own: Access) -> Iterator[Finding]:
    """The loops and conditions around a write that are not as around `hf`'s."""
    meant = [one for one in theirs.scopes.statements if _holds(one, own.statement)]
    tests = [ast.unparse(one.test) for one in meant if isinstance(one, ast.If)]
    for one in places.scopes.statements:
        if not _holds(one, write.statement):
            continue
        if isinstance(one, ast.If) and ast.unparse(one.test) not in tests:
            words = (
                f"line {write.line} writes only where `{ast.unparse(one.test)}`, and `hf`, line "
                f"{own.line}, has no such condition"
            )
            edit = Edit(one.lineno, places.file.line(one.lineno))
            yield Finding("dropped", words, edit=edit)
        alike = [each for each in meant if _same_loop(one, each)]
        other = beside(places, theirs, one, alike[0]) if len(alike) == 1 else None
        if other is not None:
            yield Finding("other-layer", _capital(other.words), edit=other.edit)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _holds(one: ast.stmt, statement: ast.stmt) -> bool:
    block = isinstance(one, (ast.For, ast.If))
    return block and any(node is statement for node in ast.walk(one))


def _same_loop(one: ast.stmt, other: ast.stmt) -> bool:
    """Do two loops run with the same variable?"""
    if not isinstance(one, ast.For) or not isinstance(other, ast.For):
        return False
    return ast.unparse(one.target) == ast.unparse(other.target)


def _told_by_numbers(
    sources: Sequence[Finding], reads: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """The same with one finding for a read that both its text and its numbers tell: in the words of
    the latter, which say what it holds, with the edit of the former.
    """
    left, found = list(reads), []
    for source in sources:
        alike = [
            one
            for one in left
            if one.edit and source.edit and not one.edit.after and one.edit.line == source.edit.line
        ]
        left = [one for one in left if one not in alike]
        found += [replace(one, edit=source.edit) for one in alike] or [source]
    return found, left


def _used(
    places: Places, writes: Sequence[Access], unknown: Mapping[str, Finding]
) -> list[Finding]:
    """The returned variables that a write is made with and that are other ones before any write."""
    found: list[Finding] = []
    first = min((one.line for one in places.writes()), default=0)
    for write in writes:
        way = places.way_to(write)[:-1]
        for name, one in unknown.items():
            made, told = made_by(places, name), made_otherwise(places, name)
            above = made is not None and made in way and made.lineno < first
            if not above or told is None or any(one.name == other.name for other in found):
                continue
            begin = f"{one.words}. Line {write.line} writes with it, and "
            for words, edit in _made_of(places, name) or [(told.words, told.edit)]:
                found.append(replace(one, kind="used", words=f"{begin}{words}", edit=edit))
                begin = ""
    return found


def _made_of(places: Places, name: str) -> list[tuple[str, Edit | None]]:
    """The lines by which a value is made otherwise than in `hf`, or of other reads: in words."""
    lines = [one for one in unlike_lines(places, name, [name], ()) if one.sure]
    if lines:
        return [(one.words, one.edit) for one in lines]
    return [(one.words, one.edit) for one in other_reads(places, name)]


def _axes(places: Places, writes: Sequence[Access]) -> list[Finding]:
    """The reads of what a write writes that count a batch axis."""
    way = [one for write in writes for one in places.way_to(write) if one is not write.statement]
    return [
        Finding("axis", f"line {one.edit.line} reads something else: {one.edit.why}", edit=one.edit)
        for one in batch_axis.lost(places)
        if one.statement in way
    ]


def _other_writes(places: Places, writes: Sequence[Access], first: Edit | None) -> list[Finding]:
    """The writes at the same layer that have the same mistake."""
    lost = batch_axis.written_by(places, writes)
    if first not in lost:
        return []
    return [
        Finding("axis", f"line {edit.line} does the same", edit=edit)
        for edit in lost
        if edit != first
    ]


def _lines(way: Sequence[ast.stmt]) -> Iterator[int]:
    for one in way:
        if not hasattr(one, "body"):
            yield from range(one.lineno, (one.end_lineno or one.lineno) + 1)


def _sources(part: Parting, places: Places, writes: Sequence[Access]) -> list[Finding]:
    """The reads of half a stream that a write gets its value from."""
    half = part.given is not None and part.given.half
    unknown = not part.kind and part.given is None
    found: list[Finding] = []
    if half or (unknown and _whole_on_transformers(places)):
        for write in writes:
            for edit in half_reads(places, write):
                if any(one.edit == edit for one in found):
                    continue
                words = f"line {edit.line} reads half of the residual stream"
                if found:
                    words += ", too"
                elif edit.line == write.line:
                    words += f" and writes what comes of it ({edit.why or SUM})"
                else:
                    words += f", and line {write.line} writes what comes of it ({edit.why or SUM})"
                found.append(Finding("half", words, edit=edit))
    if not found and unknown:
        found = [one for write in writes for one in _of_its_own_half(part, places, write)]
    return found


def _of_its_own_half(part: Parting, places: Places, write: Access) -> list[Finding]:
    """A half of a stream that is changed and put back in its own place, where the whole is meant:
    the read, and where the new value stands for the stream the half that stays beside it.
    """
    reads = own_half_reads(places, write)
    if not reads:
        return []
    [*before, last] = reads
    cleared = None
    if isinstance(write.statement, ast.Assign) and not _writes_both(places, write):
        beside = "second-half" if write.index == 1 else "first-half"
        cleared = write_edit(places, replace(part, kind=beside))
    if cleared is not None and cleared.line == last.line:
        after = cleared.after.removeprefix(cleared.before)
        last = replace(last, after=last.after + after if after != cleared.after else last.after)
        cleared = None
    found = [
        Finding(
            "half",
            f"line {one.line} reads half of the residual stream, and line {write.line} writes what "
            f"comes of it ({one.why or SUM})",
            edit=one,
        )
        for one in (*before, last)
    ]
    if cleared is not None:
        words = f"line {cleared.line} then writes the whole stream to one half: {cleared.why}"
        found.append(Finding("half", words, edit=cleared))
    return found


def _writes_both(places: Places, write: Access) -> bool:
    """Is the other half of the same layer written to in the same block?"""
    return any(
        one.module == write.module
        and one.index not in {write.index, None}
        and places.block(one.statement) is places.block(write.statement)
        for one in places.writes()
    )


def _whole_on_transformers(places: Places) -> bool:
    """Does `hf` write what comes of a layer's whole output, and not of its MLP's?"""
    if not places.file.ported:
        return True
    theirs = Places(places.file, places.file.function_for("hf"))
    return any(
        access.value == "output" and is_layer(access)
        for write in theirs.writes()
        for statement in theirs.way_to(write)
        if statement is not write.statement
        for access in theirs.accesses(statement)
    )


def _neighbours(part: Parting, places: Places, writes: Sequence[Access]) -> list[Finding]:
    """The read of another layer's value than that which was to be written."""
    given = part.given
    if given is None or given.half or given.again:
        return []
    by = _between(given.held.layer, given.meant.layer if given.meant else None)
    read = [
        (write, access)
        for write in writes
        for statement in places.way_to(write, index=False)[:-1]
        for access in places.accesses(statement)
    ]
    if len({access.line for _, access in read}) != 1:
        return []  # which of them is the wrong one is not known
    write, access = read[0]
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    own = counterpart(places, theirs, write) if theirs is not None else None
    other = beside(places, theirs, write.statement, own.statement) if theirs and own else None
    if other is not None:  # of what is read, it takes another one
        words = f"{given.words}. {_capital(other.words)}"
        return [Finding("other-value", words, edit=other.edit)]
    right = shifted(access.module, by) if by else ""
    before = places.file.line(access.line)
    after = before.replace(access.module, right) if right else ""
    words = f"line {write.line} writes what line {access.line} reads: {given.words}"
    return [Finding("other-value", words, edit=Edit(access.line, before, after))]


def _of_the_same_text(part: Parting, places: Places, writes: Sequence[Access]) -> list[Finding]:
    """Of a write without effect the read of what it writes, where that is in a run of the same text
    and transformers has another text's there.
    """
    if part.due is None or not all(map(in_its_place, writes)):
        return []
    for write in writes:
        mine = _reads_in_a_trace(places, write)
        ran = [n for n in range(part.ran) if mine and places.trace_of(n, part.ran) is mine[0]]
        if mine is None or not ran or not set(ran) <= set(part.alike):
            continue
        block, line = mine
        words = (
            f"line {line} reads what line {write.line} writes in the trace of line {block.lineno}, "
            "a run of the same text: nothing changes by it"
        )
        theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
        own = counterpart(places, theirs, write) if theirs is not None else None
        meant = _reads_in_a_trace(theirs, own) if theirs is not None and own else None
        if meant is not None:
            words += f". Line {meant[1]} of `hf` reads it in the trace of line {meant[0].lineno}"
        return [Finding("other-prompt", words, edit=Edit(line, places.file.line(line)))]
    return []


def _reads_in_a_trace(places: Places, write: Access) -> tuple[ast.With, int] | None:
    """The trace in which all that a write writes is read, and the first line that does; None where
    there are several, or none.
    """
    reads = [
        one
        for statement in places.way_to(write, index=False)[:-1]
        for one in places.accesses(statement)
    ]
    blocks = [
        block
        for block in places.traces()
        if any(one.statement is node for one in reads for node in ast.walk(block))
    ]
    inside = [one.line for one in reads if any(n is one.statement for n in _all(blocks))]
    whole = len(blocks) == 1 and len(inside) == len(reads)
    return (blocks[0], min(inside)) if whole else None


def _all(blocks: Sequence[ast.With]) -> Iterator[ast.AST]:
    for one in blocks:
        yield from ast.walk(one)


def _run(part: Parting, places: Places) -> str:
    """Which run of the model it is, in words, where more than one is written in; "" else."""
    own, traces = places.trace_of(part.own, part.ran), places.traces()
    written = [
        block
        for block in traces
        if any(one.statement is node for one in places.writes() for node in ast.walk(block))
    ]
    several = part.ran > len(traces)
    if own is None:
        return f" in prompt {part.sequence}" if traces and several else ""
    if len(written) < 2 and not several:
        return ""
    return f" in prompt {part.sequence}, the trace of line {own.lineno}"


def _between(held: int | None, meant: int | None) -> int:
    return 0 if held is None or meant is None else meant - held


def _written(part: Parting, places: Places, *, follows: bool) -> Finding:
    """What the write was seen to do; `follows` says that its value was wrong before it."""
    edit = write_edit(places, part)
    if follows and not part.kind and edit not in batch_axis.written_by(places, places.writes()):
        edit = None
    words = f"{'so ' if follows else ''}the layers differ since {part.place()}{_run(part, places)}"
    if part.words:
        words += f": {part.words}"
    if edit is not None and edit.why:
        words += f" ({edit.why})"
    kind = part.kind or ("other-value" if part.given else "write")
    layer = None if part.layer == BEFORE else part.layer
    return Finding(kind, words, layer=layer, step=part.step, prompt=part.sequence, edit=edit)

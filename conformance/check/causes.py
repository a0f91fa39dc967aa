"""Where the layers part: the write, and before it what its value is made from where that is read
in the wrong place. Then the read is the cause, and the write follows from it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.check.edits import SUM, Edit, is_layer, shifted
from conformance.check.finding import Finding, once
from conformance.check.halves import half_reads
from conformance.check.places import Access, Places
from conformance.check.write_edits import write_edit, written_here
from conformance.check.writes import Parting


def ordered(
    part: Parting, places: Places, reads: Sequence[Finding], *, dual: bool
) -> tuple[Finding, ...]:
    """What to say where the layers part, `reads` being values that are read in the wrong place:
    first what the write's value comes from. `dual`: layers there return a stream in two halves.
    """
    writes = written_here(places, part)
    sources = _sources(part, places, writes) if dual else []
    sources = sources or _neighbours(part, places, writes)
    edits = [one.edit for one in sources]
    same = [replace(one, kind=sources[0].kind) for one in reads if one.edit in edits]
    way = {line for write in writes for line in _lines(places.way_to(write))}
    others = [one for one in reads if one.edit not in edits]
    before = [one for one in others if one.edit is not None and one.edit.line in way]
    after = [one for one in others if one not in before]
    causes = once([*sources, *same, *before])
    return (*causes, _written(part, places, follows=bool(causes)), *once(after))


def _lines(way: Sequence[ast.stmt]) -> Iterator[int]:
    for one in way:
        if not hasattr(one, "body"):
            yield from range(one.lineno, (one.end_lineno or one.lineno) + 1)


def _sources(part: Parting, places: Places, writes: Sequence[Access]) -> list[Finding]:
    """The reads of half a stream that a write gets its value from."""
    half = part.given is not None and part.given.half
    if not half and (part.kind or part.given or not _whole_on_transformers(places)):
        return []
    found: list[Finding] = []
    for write in writes:
        for edit in half_reads(places, write):
            if any(one.edit == edit for one in found):
                continue
            words = f"line {edit.line} reads half of the residual stream"
            if found:
                words += ", too"
            else:
                words += f", and line {write.line} writes what comes of it ({edit.why or SUM})"
            found.append(Finding("half", words, edit=edit))
    return found


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
    if given is None or given.half:
        return []
    by = _between(given.held.layer, given.meant.layer if given.meant else None)
    read = [
        (write, access)
        for write in writes
        for statement in places.way_to(write)[:-1]
        for access in places.accesses(statement)
    ]
    if len({access.line for _, access in read}) != 1:
        return []  # which of them is the wrong one is not known
    write, access = read[0]
    right = shifted(access.module, by) if by else ""
    before = places.file.line(access.line)
    after = before.replace(access.module, right) if right else ""
    words = f"line {write.line} writes what line {access.line} reads: {given.words}"
    return [Finding("other-value", words, edit=Edit(access.line, before, after))]


def _between(held: int | None, meant: int | None) -> int:
    return 0 if held is None or meant is None else meant - held


def _written(part: Parting, places: Places, *, follows: bool) -> Finding:
    """What the write was seen to do; `follows` says that its value was wrong before it."""
    edit = write_edit(places, part)
    words = f"{'so ' if follows else ''}the layers differ since {part.place()}"
    if part.words:
        words += f": {part.words}"
    if edit is not None and edit.why:
        words += f" ({edit.why})"
    if follows and not part.kind:
        edit = None
    kind = part.kind or ("other-value" if part.given else "write")
    return Finding(kind, words, layer=part.layer, step=part.step, prompt=part.sequence, edit=edit)

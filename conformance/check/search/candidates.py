"""Propose versions of a file for a search, the likeliest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import (
    ParsedFile,
    Statement,
    is_python,
    names_in,
)
from conformance.check.search.rewrites import REWRITES, logits, reads, writes

#: The extra cost of a change on lines that neither failed nor lead to a wrong value.
_ELSEWHERE = 10

#: The extra cost of a change on lines that lead to the line that raised an error.
_LEADING = 3

#: The extra cost of changing a read if the layers differ, and of changing a write if they agree.
_UNLIKELY = 4
_READS, _WRITES = {*vars(reads), *vars(logits)}, {*vars(writes)}

#: The shortest expression that is changed wherever its statement has it, in bytes.
_REPEATED = 4

#: The extra cost of a change in functions that `hf` calls too: they are right for `hf`.
_SHARED = 6


@dataclass(frozen=True)
class Proposal:
    """A version of a file: its text, and which lines of its parent it changes and why."""

    text: str
    rewrite: str
    words: str
    lines: tuple[int, ...]
    cost: int


def propose(text: str, side: str, clues: Clues) -> list[Proposal]:
    """Return the versions that differ from a file by one rewrite, the likeliest first."""
    program = ParsedFile(text, side)
    suspects, written = _suspects(program, clues), {one.line for one in _writes(program)}
    found: dict[str, Proposal] = {}
    for name, change in changes(program, clues):
        candidate = _candidate(program, name, change, suspects, written, clues)
        if candidate is not None:
            known = found.setdefault(candidate.text, candidate)
            found[candidate.text] = min(known, candidate, key=lambda one: one.cost)
    return sorted(found.values(), key=lambda one: (one.cost, one.lines))


def changes(program: ParsedFile, clues: Clues) -> Iterator[tuple[str, Change]]:
    """Yield all changes, each with the name of its rewrite."""
    for rewrite in REWRITES:
        for one in rewrite(program, clues):
            yield rewrite.__name__, one
            yield from ((rewrite.__name__, every) for every in _repeated(program, one))


def _repeated(program: ParsedFile, change: Change) -> Iterator[Change]:
    """Yield the change made wherever its statement has the same expression: a slip is copied."""
    if len(change.splices) != 1:
        return
    [splice] = change.splices
    source = program.text.encode()
    old = source[splice.start : splice.end]
    if len(old) < _REPEATED or b"\n" in old:
        return
    for statement in program.statements:
        if statement.start <= splice.start and splice.end <= statement.end:
            whole = re.compile(rb"(?<![\w.])" + re.escape(old) + rb"(?![\w.\[(])")
            places = list(whole.finditer(source, statement.start, statement.end))
            if len(places) > 1:
                splices = tuple(replace(splice, start=p.start(), end=p.end()) for p in places)
                yield replace(change, splices=splices, cost=change.cost + 1)
            return


def _candidate(
    program: ParsedFile,
    name: str,
    change: Change,
    suspects: set[int],
    written: set[int],
    clues: Clues,
) -> Proposal | None:
    lines = tuple(
        sorted({n for one in change.splices for n in _lines(program, one.start, one.end)})
    )
    text = program.replaced(change.splices)
    if text == program.text or not is_python(text):
        return None
    cost = change.cost + 2 * (program.text.count(".clone()") > text.count(".clone()"))
    if not set(lines) & set(clues.lines):
        near = bool(suspects & set(lines)) or change.anywhere
        cost += (_LEADING if clues.lines else 0) if near else _ELSEWHERE
    if set(lines) <= program.shared:
        cost += _SHARED
    if not clues.lines and clues.wrong:
        # If the layers agree, no write is wrong; if they differ, only reads for writes explain it.
        of_write = set(lines) & written
        unlikely = name in _READS and not of_write if clues.parted else name in _WRITES
        cost += _UNLIKELY if unlikely else 0
    return Proposal(text, name, change.words, lines, cost)


def _lines(program: ParsedFile, start: int, end: int) -> range:
    return range(program.line(start), program.line(max(start, end - 1)) + 1)


def _suspects(program: ParsedFile, clues: Clues) -> set[int]:
    """Return the lines that lead to a wrong value or an error: those that assign or fill the names
    used for it, and the compound statements around them. If the layers differ, add the writes.
    """
    if not (clues.wrong or clues.lines):
        return {statement.line for statement in program.statements}
    returns = [one for one in program.statements if one.text.startswith("return")]
    names = {name for one in returns for name in _of_returned(one.text, clues.wrong)}
    found = list(returns)
    if clues.lines:
        found = [one for one in program.statements if one.line in clues.lines]
        names = {name for one in found for name in _flow(one)[1]}
    if clues.parted:
        found += _writes(program)
        names |= {name for one in found for name in _flow(one)[1]}
    added = found
    while added:
        called = {id(one) for name in names for one in program.inside_of(name)}
        leading = [one for one in program.statements if _flow(one)[0] & names or id(one) in called]
        added = [one for one in leading if one not in found]
        found += added
        names |= {name for one in added for name in _flow(one)[1]}
    around = [
        program.statement_of(node)
        for one in found
        for node in program.around(one.node, cst.BaseCompoundStatement)
    ]
    every = [*found, *(one for one in around if one is not None)]
    return {line for one in every for line in _lines(program, one.start, one.end)}


def _writes(program: ParsedFile) -> list[Statement]:
    """Return the statements that write to a module, by its path or by a name for its value."""
    stored = [program.statement_of(one.node) for one in program.accesses if one.stored]
    holds = r"(\w+) = .*\.(?:output|input|stream|live)\b"
    names = {
        found[1] for one in program.statements if (found := re.match(holds, one.text, re.DOTALL))
    }
    held = "|".join(map(re.escape, sorted(names))) or "(?!)"
    put = (
        rf"(?:\S*\.(?:stream|live|logits|output|input)\b.*?|(?:{held})(?:\[.*?\])?) ?[-+*/]?= "
        rf"|(?:{held})(?:\[.*?\])?\.\w+_\("
    )
    return [one for one in program.statements if one in stored or re.match(put, one.text)]


def _of_returned(text: str, wrong: tuple[str, ...]) -> set[str]:
    """Return the names in a return statement's wrong entries, or all if no entry is found."""
    entries = (rf"[\"']{re.escape(name)}[\"']: (.+?)(?:, [\"']|\}}|$)" for name in wrong)
    found = [re.search(entry, text, re.DOTALL) for entry in entries]
    return {name for one in found for name in names_in(one[1] if one else text)}


def _flow(statement: Statement) -> tuple[set[str], set[str]]:
    """Return the names that a statement assigns or fills, and those that it uses."""
    text = statement.text
    if found := re.match(r"for (.+?) in (.+):$", text, re.DOTALL):
        return names_in(found[1]), names_in(found[2])
    if found := re.match(r"(?:with|if|while) .*?(?: as (\w+))?:$", text, re.DOTALL):
        return {found[1]} if found[1] else set(), names_in(text)
    if found := re.match(r"([^=]+?)\s*[-+*/@]?=(?!=)\s*(.+)$", text, re.DOTALL):
        return names_in(found[1]), names_in(text)
    if found := re.match(r"(\w+)(?:\[.*?\])?\.\w+\(", text):
        return {found[1]}, names_in(text)
    return set(), names_in(text)

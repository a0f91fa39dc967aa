"""Propose versions of a file for a search, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conformance.commands.check.search.change import Change, Clues, Rewrite
from conformance.commands.check.search.program import ParsedFile, is_python
from conformance.commands.check.search.rewrites import (
    accessors,
    axes,
    counterparts,
    logits,
    modules,
    reads,
    requests,
    saves,
    writes,
)

#: The rewrites: the public functions of these modules that yield changes.
REWRITES: tuple[Rewrite, ...] = tuple(
    function
    for module in (reads, axes, logits, modules, accessors, requests, writes, saves, counterparts)
    for name, function in vars(module).items()
    if getattr(function, "__module__", "") == module.__name__
    and not name.startswith("_")
    and getattr(function, "__annotations__", {}).get("return") == "Iterator[Change]"
)

#: The extra cost of a change on other lines than those that raised an error, and of one that can
#: explain an error at other lines.
_ELSEWHERE, _LEADING = 5, 3

#: The extra cost of changing a read if the layers differ, and of changing a write if they agree.
_UNLIKELY = 4
_READS, _WRITES = {*vars(reads), *vars(logits)}, {*vars(writes)}

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
    found: dict[str, Proposal] = {}
    for name, one in changes(program, clues):
        candidate = _candidate(program, name, one, clues)
        if candidate is not None:
            known = found.setdefault(candidate.text, candidate)
            found[candidate.text] = min(known, candidate, key=lambda each: each.cost)
    return sorted(found.values(), key=lambda one: (one.cost, one.lines))


def changes(program: ParsedFile, clues: Clues) -> Iterator[tuple[str, Change]]:
    """Yield all changes, each with the name of its rewrite."""
    for rewrite in REWRITES:
        for one in rewrite(program, clues):
            yield rewrite.__name__, one


def _candidate(program: ParsedFile, name: str, change: Change, clues: Clues) -> Proposal | None:
    spans = [map(program.line, (one.start, max(one.start, one.end - 1))) for one in change.splices]
    lines = tuple(sorted({n for first, last in spans for n in range(first, last + 1)}))
    text = program.replaced(change.splices)
    if text == program.text or not is_python(text):
        return None
    cost = change.cost + 2 * (program.text.count(".clone()") > text.count(".clone()"))
    if clues.lines and not set(lines) & set(clues.lines):
        cost += _LEADING if change.anywhere else _ELSEWHERE
    if set(lines) <= program.shared:
        cost += _SHARED
    # If the layers agree, no write is wrong; if they differ, a read rarely explains it.
    if not clues.lines and clues.wrong and name in (_READS if clues.parted else _WRITES):
        cost += _UNLIKELY
    return Proposal(text, name, change.words, lines, cost)

"""Rewrites that copy from `hf` where `vllm` differs from it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import product

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import ParsedFile, Splice, Statement
from conformance.commands.check.search.rewrites.porting import port_statement

_WORDS = "as in `hf`"

#: Texts that differ between the two sides for a reason.
_OF_SIDES = re.compile(r"lm_head|max_(?:new_)?tokens|do_sample|temperature")
_LACKS = "`hf` has this line too"


def align(
    hf: Sequence[Statement], vllm: Sequence[Statement]
) -> Iterator[tuple[Statement | None, Statement | None]]:
    """Yield pairs that align two functions in order, by likeness; None for no counterpart.

    This is Needleman and Wunsch's alignment (J. Mol. Biol. 48, 1970), scored by `_likeness`.
    """
    rows, columns = len(hf), len(vllm)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i, j in product(reversed(range(rows)), reversed(range(columns))):
        pair = _likeness(hf[i], vllm[j]) + best[i + 1][j + 1]
        best[i][j] = max(pair, best[i + 1][j], best[i][j + 1])
    i = j = 0
    while i < rows or j < columns:
        alone = j == columns or (i < rows and best[i][j] == best[i + 1][j])
        lacking = not alone and (i == rows or best[i][j] == best[i][j + 1])
        yield None if lacking else hf[i], None if alone else vllm[j]
        i, j = i + (not lacking), j + (not alone)


def _tokens(text: str) -> list[re.Match[str]]:
    return list(re.finditer(r"\"[^\"]*\"|'[^']*'|\w+|[^\w\s]", text))


def _matcher(one: str, other: str) -> difflib.SequenceMatcher[str]:
    first, second = ([token[0] for token in _tokens(text)] for text in (one, other))
    return difflib.SequenceMatcher(None, first, second, autojunk=False)


def _likeness(one: Statement, other: Statement) -> float:
    """Return a score from 0 to 1, 0 for different kinds of statements or too few common tokens."""
    if type(one.node) is not type(other.node):
        return 0.0
    names = [re.match(r"([\w., ]+?) [-+*/]?= ", each.text) for each in (one, other)]
    same = names[0] and names[1] and names[0][1] == names[1][1]
    return max(0.0, _matcher(one.text, other.text).ratio() + (0.3 if same else 0.0) - 0.3)


def take_counterparts(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Copy parts of a statement, a whole one, or one that `vllm` lacks from `hf`."""
    if "hf" not in program.functions or "vllm" not in program.functions:
        return
    source = ParsedFile(program.text, "hf")
    hf = source.statements_of(source.functions["hf"])
    vllm = program.statements_of(program.functions["vllm"])
    last: Statement | None = None
    for theirs, mine in align(list(hf), list(vllm)):
        last = mine or last
        simple = isinstance(getattr(theirs or mine, "node", None), cst.SimpleStatementLine)
        if mine and theirs:
            yield from _parts(theirs, mine)
        elif mine and simple:
            yield change(7, "`hf` has no such line", program.without(mine))
        ported = list(port_statement(source, theirs, clues)) if theirs else []
        ported += [text.replace("[:, ", "[") for text in ported[:1] if "[:, " in text]
        for cost, text in enumerate(ported):
            if mine:
                yield change(3 + cost, _WORDS, program.put(mine, text))
            elif last and simple:
                yield change(5 + cost, _LACKS, program.after(last, text))


def _parts(theirs: Statement, mine: Statement) -> Iterator[Change]:
    """Replace the tokens that differ between two statements: at one place, or at all places."""
    ours, others = _tokens(mine.text), _tokens(theirs.text)
    found = []
    for tag, a, b, c, d in _matcher(mine.text, theirs.text).get_opcodes():
        inserted = tag == "insert" and a and c  # with the space before it
        begin = others[c - 1].end() if inserted else others[c].start() if c < d else 0
        text = theirs.text[begin : others[d - 1].end()] if c < d else ""
        start = (
            ours[a - 1].end() if inserted else ours[a].start() if a < len(ours) else len(mine.text)
        )
        end = ours[b - 1].end() if a < b else start
        if tag != "equal" and not _OF_SIDES.search(text + mine.text[start:end]):
            start, end = (mine.start + len(mine.text[:at].encode()) for at in (start, end))
            found.append((1 if d - c == 1 else 3, Splice(start, end, text)))
    yield from (change(cost, _WORDS, one) for cost, one in found)
    if len(found) > 1:
        yield change(2, _WORDS, *(one for _, one in found))

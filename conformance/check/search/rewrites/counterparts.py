"""Counterparts: what `hf` has where `vllm` has something else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, Splice, Statement, header, names_in
from conformance.check.search.rewrites.porting import port_statement

_WORDS = "as in `hf`"


def align(
    hf: Sequence[Statement], vllm: Sequence[Statement]
) -> list[tuple[int | None, int | None]]:
    """Pair the statements of two functions in their order, the more alike the better.

    Needleman and Wunsch's alignment (J. Mol. Biol. 48, 1970) with the share of equal tokens as the
    score. A statement without a counterpart is paired with None.
    """
    rows, columns = len(hf), len(vllm)
    alike = [[_likeness(a, b) for b in vllm] for a in hf]
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            best[i][j] = max(alike[i][j] + best[i + 1][j + 1], best[i + 1][j], best[i][j + 1])
    pairs: list[tuple[int | None, int | None]] = []
    i = j = 0
    while i < rows and j < columns:
        if best[i][j] == best[i + 1][j]:
            pairs.append((i, None))
            i += 1
        elif best[i][j] == best[i][j + 1]:
            pairs.append((None, j))
            j += 1
        else:
            pairs.append((i, j))
            i, j = i + 1, j + 1
    pairs += [(at, None) for at in range(i, rows)] + [(None, at) for at in range(j, columns)]
    return pairs


def _tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def _likeness(one: Statement, other: Statement) -> float:
    """From 0 to 1; 0 for statements of different kinds or hardly anything in common."""
    if type(one.node) is not type(other.node):
        return 0.0
    ratio = difflib.SequenceMatcher(None, _tokens(one.text), _tokens(other.text), False).ratio()
    assigned = [re.match(r"([\w., ]+?) [-+*/]?= ", each.text) for each in (one, other)]
    same = assigned[0] and assigned[1] and assigned[0][1] == assigned[1][1]
    return max(0.0, ratio + (0.3 if same else 0.0) - 0.3)


def take_counterparts(program: Program, clues: Clues) -> Iterator[Change]:
    """Take what `hf` has: parts of a statement, a whole one, or one that `vllm` lacks."""
    if "hf" not in program.functions or "vllm" not in program.functions:
        return
    source = Program(program.text, "hf")
    hf = source.statements_of(source.functions["hf"])
    vllm = program.statements_of(program.functions["vllm"])
    own = _Own(program, hf, vllm)
    last: Statement | None = None
    for i, j in align(hf, vllm):
        if i is None and j is not None:
            last = vllm[j]
            if isinstance(last.node, cst.SimpleStatementLine):
                yield Change((program.without(last),), "`hf` has no such line", 7)
        elif i is not None and j is not None:
            last = vllm[j]
            yield from map(own.complete, _parts(program, source, hf[i], last))
            for cost, text in enumerate(port_statement(source, hf[i], clues)):
                if text != last.text:
                    whole = Change((Splice(last.start, last.end, text),), _WORDS, 3 + cost)
                    yield own.complete(whole)
        elif i is not None and last is not None and isinstance(hf[i].node, cst.SimpleStatementLine):
            for cost, text in enumerate(port_statement(source, hf[i], clues)):
                put = program.after(last, *text.split("\n"))
                yield own.complete(Change((put,), "`hf` has this line too", 5 + cost))


class _Own:
    """The names of the two functions: what is taken over from `hf` takes its own names along."""

    def __init__(
        self, program: Program, hf: Sequence[Statement], vllm: Sequence[Statement]
    ) -> None:
        self.program = program
        self.made = {name: one for one in reversed(hf) for name in _assigned(one)}
        self.there = {name for one in vllm for name in _assigned(one)}
        self.first = vllm[0] if vllm else None

    def complete(self, change: Change) -> Change:
        """Add the statements of `hf` that make names which a change uses and `vllm` has not."""
        used = {name for one in change.splices for name in names_in(one.text)}
        lacks = [self.made[name] for name in sorted((used & self.made.keys()) - self.there)]
        blocks = [one for one in lacks if self.program.around(one.node, cst.With)]
        if not lacks or blocks or self.first is None:
            return change
        lines = [one.text for one in lacks]
        added = self.program.before(self.first, *lines)
        return replace(change, splices=(*change.splices, added), cost=change.cost)


def _assigned(statement: Statement) -> set[str]:
    found = re.match(r"([\w, ]+?) = ", statement.text)
    return names_in(found[1]) if found else set()


def _parts(
    program: Program, source: Program, theirs: Statement, mine: Statement
) -> Iterator[Change]:
    """Replace what differs between two statements of one shape, all of it or each by itself."""
    a, b = header(theirs.node), header(mine.node)
    if isinstance(theirs.node, cst.With):
        a, b = _prompts(source, theirs.node), _prompts(program, mine.node)
    found = [
        (program.swap(y, source.code(x)), _kind(x))
        for left, right in zip(a, b, strict=False)
        for x, y in _differences(left, right)
        if not re.search(r"lm_head|max_new_tokens|do_sample", source.code(x))
    ]
    for one, cost in found:
        yield Change((one,), _WORDS, cost)
    if len(found) > 1:
        yield Change(tuple(one for one, _ in found), _WORDS, 2)


def _prompts(program: Program, node: cst.CSTNode) -> list[cst.CSTNode]:
    """What the calls of a block's header are given by position, without how to generate."""
    return [
        arg.value
        for call in program.walk(node.items[0].item)  # type: ignore[attr-defined]
        if isinstance(call, cst.Call)
        for arg in call.args
        if arg.keyword is None and not arg.star
    ]


def _kind(node: cst.CSTNode) -> int:
    return 1 if isinstance(node, (cst.BaseNumber, cst.SimpleString, cst.Name)) else 3


def _differences(
    theirs: cst.CSTNode, mine: cst.CSTNode
) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield the smallest parts that differ, and those around them up to the whole expression."""
    if theirs.deep_equals(mine):
        return
    expressions = isinstance(theirs, cst.BaseExpression) and isinstance(mine, cst.BaseExpression)
    if type(theirs) is not type(mine):
        if expressions:
            yield theirs, mine
        return
    one, other = _children(theirs), _children(mine)
    if len(one) != len(other) or not one:
        if expressions:
            yield theirs, mine
        for a, b in zip(one, other, strict=False):
            yield from _differences(a, b)
        return
    for a, b in zip(one, other, strict=True):
        yield from _differences(a, b)


def _children(node: cst.CSTNode) -> list[cst.CSTNode]:
    quiet = (cst.BaseParenthesizableWhitespace, cst.Comma, cst.Dot, cst.LeftParen, cst.RightParen)
    return [child for child in node.children if not isinstance(child, quiet)]

"""Counterparts: what `hf` has where `vllm` has something else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from conformance.check.search.change import Change, Clues, change
from conformance.check.search.patterns import parts_of
from conformance.check.search.program import Program, Statement, header, names_in
from conformance.check.search.rewrites.porting import port_statement

_WORDS = "as in `hf`"
_LACKS = "`hf` has this line too"

_SIMPLE = cst.SimpleStatementLine
_SHORT = (cst.BaseNumber, cst.SimpleString, cst.Name)


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
    last: Statement | None = None
    for i, j in align(hf, vllm):
        last = vllm[j] if j is not None else last
        simple = isinstance((vllm[j] if i is None and j is not None else hf[i or 0]).node, _SIMPLE)
        found: list[Change] = []
        if i is None:
            found = (
                [change(7, "`hf` has no such line", program.without(last))]
                if last and simple
                else []
            )
        elif last and (j is not None or simple):
            ports = enumerate(port_statement(source, hf[i], clues))
            if j is not None:
                found = [*_parts(program, source, hf[i], last)]
                found += [change(3 + cost, _WORDS, program.put(last, text)) for cost, text in ports]
            else:
                found = [
                    change(5 + cost, _LACKS, program.after(last, text)) for cost, text in ports
                ]
        yield from (_completed(one, program, hf, vllm) for one in found)


def _completed(
    found: Change, program: Program, hf: Sequence[Statement], vllm: Sequence[Statement]
) -> Change:
    """Add the statements of `hf` that make names which a change uses and `vllm` has not."""
    made = {name: one for one in reversed(hf) for name in _assigned(one)}
    there = {name for one in vllm for name in _assigned(one)}
    used = {name for one in found.splices for name in names_in(one.text)}
    lacks = [made[name] for name in sorted((used & made.keys()) - there)]
    if not lacks or any(program.around(one.node, cst.With) for one in lacks):
        return found
    added = program.before(vllm[0], *(one.text for one in lacks))
    return replace(found, splices=(*found.splices, added))


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
        (program.swap(y, source.code(x)), 1 if isinstance(x, _SHORT) else 3)
        for left, right in zip(a, b, strict=False)
        for x, y in _differences(left, right)
        if not re.search(r"lm_head|max_new_tokens|do_sample", source.code(x))
    ]
    yield from (change(cost, _WORDS, one) for one, cost in found)
    if len(found) > 1:
        yield change(2, _WORDS, *(one for one, _ in found))


def _prompts(program: Program, node: cst.CSTNode) -> list[cst.CSTNode]:
    """What the calls of a block's header are given by position, without how to generate."""
    return [
        arg.value
        for call in program.walk(node.items[0].item)  # type: ignore[attr-defined]
        if isinstance(call, cst.Call)
        for arg in call.args
        if arg.keyword is None and not arg.star
    ]


def _differences(
    theirs: cst.CSTNode, mine: cst.CSTNode
) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield the smallest parts that differ, and those around them up to the whole expression."""
    if theirs.deep_equals(mine):
        return
    alike = type(theirs) is type(mine)
    one, other = (parts_of(theirs), parts_of(mine)) if alike else ([], [])
    expressions = isinstance(theirs, cst.BaseExpression) and isinstance(mine, cst.BaseExpression)
    if expressions and (len(one) != len(other) or not one):
        yield theirs, mine
    for a, b in zip(one, other, strict=False):
        yield from _differences(a, b)

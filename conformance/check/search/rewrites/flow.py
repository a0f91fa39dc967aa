"""Flow: conditions that hold in one step only, and values that go from one invoke to another."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, Splice


def drop_condition(program: Program, clues: Clues) -> Iterator[Change]:
    """Do in every case what is done under a condition."""
    for node in program.expressions(cst.If):
        if node.orelse is not None:
            continue
        start, end = program.span(node)
        statements = [program.statement_of(one) for one in node.body.body]
        indent = next((one.indent for one in statements if one is not None), "")
        outer = program.statement_of(node)
        if outer is None or not indent:
            continue
        body = program.code(node.body).strip("\n").replace(f"\n{indent}", f"\n{outer.indent}")
        change = (Splice(start, end, body.strip()),)
        yield Change(change, "in every step, under no condition", 3)


def separate_invokes(program: Program, clues: Clues) -> Iterator[Change]:
    """Run two invokes, of which one uses what the other reads, as two traces."""
    words = (
        "on vLLM no value goes from one invoke to another: a trace for each, one after the other"
    )
    for node in program.expressions(cst.With):
        invokes = [
            one
            for one in node.body.body
            if isinstance(one, cst.With) and ".invoke(" in program.code(one.items[0].item)
        ]
        opening = program.code(node.items[0].item)
        outer = program.statement_of(node)
        if len(invokes) < 2 or outer is None or not re.search(r"\.trace\(", opening):
            continue
        rest = opening[opening.index("(") + 1 : -1].strip()
        call = opening[: opening.index("(")]
        blocks = []
        for invoke in invokes:
            item = program.code(invoke.items[0].item)
            prompt = item[item.index("(") + 1 : -1]
            given = f"{prompt}, {rest}" if rest else prompt
            inner = program.statement_of(invoke)
            text = program.code(invoke.body).strip("\n")
            if inner is not None:
                text = text.replace(f"\n{inner.indent}", f"\n{outer.indent}")
            kept = [line for line in text.split("\n") if not re.match(r"\s*\w*barrier\w*\(", line)]
            body = _saved("\n".join(kept), outer.indent)
            blocks.append(f"with {call}({given}):\n{outer.indent}    {body.strip()}")
        start, end = program.span(node)
        text = f"\n{outer.indent}".join(blocks)
        yield Change((Splice(start, end, text),), words, 2, anywhere=True)


def _saved(body: str, indent: str) -> str:
    """Save what a block assigns to a name."""
    lines = []
    for line in body.split("\n"):
        assigned = re.match(r"\s*\w+ = (?!.*\.save\(\))(.+)$", line)
        lines.append(
            f"{line.replace(assigned[1], f'({assigned[1]}).save()')}" if assigned else line
        )
    return "\n".join(lines)

"""What a trace asks of an engine otherwise than of transformers: its prompts, and how tokens are
chosen.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from torch import Tensor

from conformance.check.advice.edits import Edit, replaced
from conformance.check.advice.finding import Finding
from conformance.check.advice.reads.computed_values import known_here
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.source import UserFile
from conformance.check.values.compare import prompt_ids
from conformance.judge.cell import Judgement
from conformance.judge.measures.structure import PROMPT_IDS
from conformance.records import Site


def prompts(
    judgement: Judgement, places: Places, mine: Mapping[Site, Tensor], truth: Mapping[Site, Tensor]
) -> tuple[Finding, ...]:
    """Other prompts make all that follows another thing, so nothing else is said. `mine` and
    `truth` are what the layers computed on both sides, with the ids that they were given.
    """
    for relation in judgement.relations:
        if relation.name == PROMPT_IDS and not relation.holds:
            ours, theirs = prompt_ids(mine), prompt_ids(truth)
            if len(ours) != len(theirs):
                words = f"other prompts are run, {len(ours)} instead of {len(theirs)}"
                words += _one_more(ours, theirs)
                return (Finding("prompt", words, edit=_call(places, 0, 1)),)
            there, number = _first_unlike(ours, theirs)
            words = f"the prompts have other tokens: {_unlike(ours[there], theirs, number)}"
            edit = _in_its_trace(places, there, number, len(ours)) or _call(
                places, there, len(ours)
            )
            words += f". {edit.why}" if edit and edit.why else ""
            return (Finding("prompt", words, prompt=number, edit=edit),)
    return ()


def reordered(
    places: Places, mine: Mapping[Site, Tensor], truth: Mapping[Site, Tensor]
) -> list[Finding]:
    """That the same prompts are run in another order: a value of each may stand for another's."""
    ours, theirs = prompt_ids(mine), prompt_ids(truth)
    first = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if first is None or sorted(ours) != sorted(theirs):
        return []
    words = (
        f"the prompts are run in another order: prompt {first} is the one that is prompt "
        f"{theirs.index(ours[first])} on transformers, and what is kept by its number is another's"
    )
    edit = _in_its_trace(places, first, theirs.index(ours[first]), len(ours))
    edit = edit or _first_given(places)
    words += f". {edit.why}" if edit is not None and edit.why else ""
    return [Finding("prompt", words, prompt=first, edit=edit)]


def _lists_in(node: ast.AST) -> list[ast.expr]:
    """What prompts are taken from in an expression, by its name or written out."""
    named = isinstance(node, ast.Name) and node.id not in dir(builtins)
    if isinstance(node, (ast.List, ast.Tuple)) or (isinstance(node, ast.Name) and named):
        return [node]
    return [one for child in ast.iter_child_nodes(node) for one in _lists_in(child)]


def _first_given(places: Places) -> Edit | None:
    """The first line that gives prompts, of a loop over several what it goes over."""
    call = next(iter(_giving(places)), None)
    if call is None:
        return None
    loop = _over(places, call)
    line = call.lineno if loop is None else loop.lineno
    return Edit(line, places.file.line(line))


def _over(places: Places, call: ast.Call) -> ast.For | None:
    """The loop whose variable a call gives as its prompt."""
    given = ast.unparse(call.args[0])
    return next(
        (
            one
            for one in reversed(places.scopes.statements)
            if isinstance(one, ast.For)
            and any(node is call for node in ast.walk(one))
            and given in map(ast.unparse, ast.walk(one.target))
        ),
        None,
    )


def _first_unlike(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> tuple[int, int]:
    """The first prompt that has other ids than transformers': its number here, and there. Of those
    that are run in another order it is one that the other side has not.
    """
    wrong = [n for n, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    mine, meant = _lacking(ours, theirs), _lacking(theirs, ours)
    return (wrong[0], wrong[0]) if len(wrong) == len(meant) else (mine[0], meant[0])


def _lacking(side: Sequence[list[int]], other: Sequence[list[int]]) -> list[int]:
    """The numbers of the prompts that the other side has not, or not so often."""
    left, found = list(other), []
    for number, ids in enumerate(side):
        if ids in left:
            left.remove(ids)
        else:
            found.append(number)
    return found


def _one_more(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> str:
    """Which prompt is run once more on one of the sides."""
    few, many = sorted((ours, theirs), key=len)
    extra = _lacking(many, few)
    if len(extra) != 1 or many[extra[0]] not in theirs:
        return ""
    ids = many[extra[0]]
    what = "one more has" if many is ours else "one fewer has" if ids in ours else "none has"
    return f": {what} the tokens of prompt {theirs.index(ids)}"


def _unlike(mine: list[int], theirs: Sequence[list[int]], number: int) -> str:
    """What a prompt has in the place of its own ids."""
    meant = theirs[number]
    alike = next((n for n, ids in enumerate(theirs) if ids == mine), None)
    if alike is not None:
        return f"prompt {number} has those of prompt {alike}, so it is given another text"
    pairs = zip_longest(mine, meant)
    at = next(n for n, (one, other) in enumerate(pairs) if one != other)
    if len(mine) == len(meant):
        more = sum(one != other for one, other in zip(mine, meant, strict=True)) - 1
        also = f", and {more} more after it" if more else ""
        there = f"id {mine[at]} instead of {meant[at]} at position {at}{also}"
        return f"prompt {number} has {there}: another text, or another tokenizer's ids"
    counts = f"prompt {number} has {len(mine)} ids instead of {len(meant)}"
    if mine[1:] == meant:
        return f"{counts}: a first token is added, {mine[0]}"
    if mine == meant[1:]:
        return f"{counts}: the first token is missing, {meant[0]}"
    return f"{counts}, others since position {at}: a template on one side, or another text"


def _call(places: Places, number: int, total: int) -> Edit | None:
    """The line that gives a prompt to the model, one of so many in the order of the text; with the
    prompt of `hf` in its place where that is written otherwise. None where it is not known.
    """
    calls = _giving(places)
    if not calls or total % len(calls):
        return None  # one of them is run several times, or takes several prompts
    several = len(calls) > 1 and total != len(calls) and len(places.function.args.args) < 2
    if several:
        return None
    call = calls[number % len(calls)]
    before = places.file.line(call.lineno)
    after = _as_in_hf(places, number, total) if len(calls) == total else ""
    return Edit(call.lineno, before, after)


def _in_its_trace(places: Places, mine: int, meant: int, total: int) -> Edit | None:
    """The line that gives a prompt, one of so many, to the trace that runs it, where the text says
    which one that is; of a loop over several what it goes over, beside what `hf` gives.
    """
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    call = places.call_of(mine, total)
    other = theirs.call_of(meant, total) if theirs is not None else None
    if call is None:
        return None
    if other is None or theirs is None:
        return Edit(call.lineno, places.file.line(call.lineno))
    loop = _over(places, call)
    if loop is not None:
        return _of_a_loop(places, theirs, (loop, call), other)
    before, after, text = places.file.line(call.lineno), "", theirs.file.segment(other.args[0])
    once = _is_once(places, call) and _is_once(theirs, other)
    same = ast.dump(other.args[0]) == ast.dump(call.args[0])
    if once and not same and known_here(places, other.args[0]):
        after = replaced(places, call.args[0], text)
    return Edit(call.lineno, before, after)


def _of_a_loop(
    places: Places, theirs: Places, mine: tuple[ast.For, ast.Call], other: ast.Call
) -> Edit:
    """What a loop over prompts goes over, with what `hf` gives, or goes over, in its place; where
    that is the same, the line of the call.
    """
    loop, call = mine
    over = _over(theirs, other)
    named, meant = _lists_in(loop.iter), _lists_in(over.iter if over else other.args[0])
    if any(ast.dump(one) == ast.dump(each) for one in named for each in meant):
        line = call.lineno if over else loop.lineno
        return Edit(line, places.file.line(line))
    known = len(named) == len(meant) == 1 and known_here(places, meant[0])
    after = replaced(places, named[0], theirs.file.segment(meant[0])) if known else ""
    text, line = theirs.file.segment(other.args[0]), other.lineno
    if over is not None:
        text, line = theirs.file.segment(over.iter), over.lineno
    why = f"`hf` gives `{text}`, line {line}"
    return Edit(loop.lineno, places.file.line(loop.lineno), after, why)


def _is_once(places: Places, call: ast.Call) -> bool:
    """Does a call stand in no loop?"""
    return not any(
        isinstance(one, (ast.For, ast.While)) and any(node is call for node in ast.walk(one))
        for one in places.scopes.statements
    )


def _giving(places: Places) -> list[ast.Call]:
    """The calls that give the model prompts, in the order of the text."""
    calls = [one for one in places.calls("trace", "generate", "invoke") if one.args]
    return sorted(calls, key=lambda one: (one.lineno, one.col_offset))


def _as_in_hf(places: Places, number: int, total: int) -> str:
    """The line of a call with the prompt that the same one of `hf` is given, "" where it is given
    it already, or has no such call.
    """
    if not places.file.ported:
        return ""
    theirs = _giving(Places(places.file, "hf", dual=False))
    if len(theirs) != total:
        return ""
    mine, meant = (side[number].args[0] for side in (_giving(places), theirs))
    same = ast.dump(mine) == ast.dump(meant)
    return (
        ""
        if same or not known_here(places, meant)
        else replaced(places, mine, places.file.segment(meant))
    )


def generated(truth: dict[Site, Tensor], names: dict[str, Site], file: UserFile) -> bool:
    """Is something off that follows from which tokens were generated? Entries of a list are of
    several steps where the text has some: they may be layers or prompts.
    """
    later = any(site.step for site in truth) and _of_several_steps(file)
    return any(
        later or not truth[site].is_floating_point() for site in names.values() if site in truth
    )


def _of_several_steps(file: UserFile) -> bool:
    """Does the file go over the steps of a generation, by its text?"""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in {"generate", "iter", "next", "all"})
        or (isinstance(node, ast.keyword) and node.arg in {"steps", "max_new_tokens"})
        for node in ast.walk(ast.parse(file.text))
    )


def drawn(places: Places) -> list[Finding]:
    """vLLM draws at temperature 1 unless it is told otherwise; transformers here does not."""
    if not places.file.ported:
        return []
    for call in places.calls("trace", "generate"):
        if not any(keyword.arg == "temperature" for keyword in call.keywords):
            before = places.file.line(call.lineno)
            segment = places.file.segment(call)
            inner = segment[:-1].rstrip().rstrip(",")
            after = before.replace(segment, f"{inner}, temperature=0.0)")
            words = (
                "vLLM draws its tokens at temperature 1.0, and 16 of them, unless it is told "
                "otherwise"
            )
            return [Finding("defaults", words, edit=Edit(call.lineno, before, after))]
    return []


def other_lengths(places: Places) -> list[Finding]:
    """Generations for which not as many tokens are asked as by `hf`, where both are known."""
    if not places.file.ported:
        return []
    theirs = Places(places.file, "hf", dual=False)
    mine, meant = (
        [
            (call, keyword)
            for call in each.calls("trace", "generate")
            for keyword in call.keywords
            if keyword.arg == name
        ]
        for each, name in ((places, "max_tokens"), (theirs, "max_new_tokens"))
    )
    numbers = _numbers(places.file)
    found = []
    for (_, own), (call, other) in zip(mine, meant, strict=False):
        asked = [_number(one.value, numbers) for one in (own, other)]
        if None in asked or asked[0] == asked[1] or len(mine) != len(meant):
            continue
        text, line = ast.unparse(other.value), own.value.lineno
        words = (
            f"line {line} asks for `{ast.unparse(own.value)}` tokens, and line {call.lineno} of "
            f"`hf` for `{text}`"
        )
        edit = Edit(line, places.file.line(line), replaced(places, own.value, text))
        found.append(Finding("defaults", words, edit=edit))
    return found


def _numbers(file: UserFile) -> dict[str, int]:
    """The whole numbers that have a name at the top of the file."""
    return {
        target.id: one.value.value
        for one in ast.parse(file.text).body
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)
        for target in one.targets
        if isinstance(target, ast.Name) and type(one.value.value) is int
    }


def _number(node: ast.expr, named: dict[str, int]) -> int | None:
    """What a number, a name of one, or a sum or difference of such is; None for all else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return named.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = (_number(one, named) for one in (node.left, node.right))
        if left is None or right is None:
            return None
        return left + right if isinstance(node.op, ast.Add) else left - right
    return None

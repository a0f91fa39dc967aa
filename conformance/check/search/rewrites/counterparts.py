"""Rewrites that copy from `hf` where `vllm` differs from it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import libcst as cst

from conformance.check.search.change import Change, Clues, change
from conformance.check.search.patterns import enclosed
from conformance.check.search.program import (
    VALUES,
    ParsedFile,
    Splice,
    Statement,
    is_python,
    names_in,
)
from conformance.check.search.rewrites.axes import OF_AXES
from conformance.check.search.rewrites.porting import port_statement, port_with_names

_WORDS = "as in `hf`"
_WITH_AXIS = "as in `hf`, on values with the batch axis that vLLM's lack"
_OTHER_CONTAINER = "as in `hf`, of what `vllm` keeps in another container"

#: Code whose result depends on the number of axes.
_AXES = re.compile(rf"\b(?:{OF_AXES.pattern})\(|einsum|rearrange|\[[^\]]*,|\.shape\b|\.m?T\b")

#: A module's value with at most an index that chooses a tensor of a tuple.
_WHOLE = re.compile(
    rf"[^\W\d][\w.]*(?:\[[^\[\]]*\][\w.]*)*\.(?:{'|'.join(sorted(VALUES))})(?:\[[01]\])?"
    r"(?:\.(?:clone|detach|float|save)\(\))*"
)

#: Values that are no tensors: sizes, numbers, texts, and ranges.
_NO_TENSORS = re.compile(
    r"[\w.\[\]-]+\.(?:shape\[-?\d\]|size\(-?\d\))(?: [-+*/]+ [\w.]+)?"
    r"|(?:len|range|int|float)\(.*|[\d'\"].*",
    re.DOTALL,
)

#: Values that are containers, by kind.
_KINDS = {
    "list": re.compile(r"(?:\[.*\]|list\(.*\))(?:\.save\(\))?", re.DOTALL),
    "dict": re.compile(r"(?:\{\}|\{.*:.*\}|dict\(.*\))(?:\.save\(\))?", re.DOTALL),
}

#: The forms of a container that `hf` keeps as one kind and `vllm` as another, by these two kinds.
_OTHER_KIND = {("list", "dict"): "list({}.values())", ("dict", "list"): "dict(enumerate({}))"}

#: The entries of a container with a batch axis, by its kinds in `hf` and in `vllm`.
_ENTRIES = {
    ("list", "dict"): "[one[None] for one in {}.values()]",
    ("list", "list"): "[one[None] for one in {}]",
    ("dict", "dict"): "{{key: one[None] for key, one in {}.items()}}",
}

#: Texts that differ between the two sides for a reason.
_OF_SIDES = re.compile(r"lm_head|max_(?:new_)?tokens|do_sample|temperature")
_LACKS = "`hf` has this line too"


def align(hf: Sequence[Statement], vllm: Sequence[Statement]) -> Iterator[tuple[int, int]]:
    """Yield pairs of statement numbers that align two functions in order, by likeness. A statement
    without a counterpart is paired with the other function's length.

    This is Needleman and Wunsch's alignment (J. Mol. Biol. 48, 1970), scored by `_likeness`.
    """
    rows, columns = len(hf), len(vllm)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i, j in product(reversed(range(rows)), reversed(range(columns))):
        pair = _likeness(hf[i], vllm[j]) + best[i + 1][j + 1]
        best[i][j] = max(pair, best[i + 1][j], best[i][j + 1])
    i = j = 0
    while i < rows or j < columns:
        if j == columns or (i < rows and best[i][j] == best[i + 1][j]):
            yield i, columns
            i += 1
        elif i == rows or best[i][j] == best[i][j + 1]:
            yield rows, j
            j += 1
        else:
            yield i, j
            i, j = i + 1, j + 1


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
    forms = list(_names_in_vllm(source, hf, program, vllm))
    last: Statement | None = None
    for i, j in align(hf, vllm):
        last = vllm[j] if j < len(vllm) else last
        theirs = hf[i] if i < len(hf) else None
        simple = isinstance((theirs or last or hf[0]).node, cst.SimpleStatementLine)
        found: list[Change] = []
        if last and theirs and j < len(vllm):
            found = list(_parts(theirs, last))
            found += _in_forms_of_vllm(source, theirs, program, last, clues, forms)
        if last and theirs is None and simple:
            found.append(change(7, "`hf` has no such line", program.without(last)))
        ported = list(port_statement(source, theirs, clues)) if theirs else []
        ported += [text.replace("[:, ", "[") for text in ported[:1] if "[:, " in text]
        for cost, text in enumerate(ported):
            if last and j < len(vllm):
                found.append(change(3 + cost, _WORDS, program.put(last, text)))
            elif last and simple:
                found.append(change(5 + cost, _LACKS, program.after(last, text)))
        yield from (_completed(one, program, hf, vllm) for one in found)


@dataclass(frozen=True)
class _Form:
    """The text that `hf` needs for a value that `vllm` holds under the same name."""

    name: str
    text: str
    cost: int
    axis: bool


def _names_in_vllm(
    source: ParsedFile, hf: Sequence[Statement], program: ParsedFile, vllm: Sequence[Statement]
) -> Iterator[_Form]:
    """Yield the forms that the names of `hf` can need in `vllm`: the entries of another container,
    and tensors with a batch axis. The form of a module's whole value costs least.
    """
    theirs, mine = (
        [pair for one in statements for pair in _assignments(parsed, one)]
        for parsed, statements in ((source, hf), (program, vllm))
    )
    kinds, ours = _containers(theirs), _containers(mine)
    for name in sorted(kinds.keys() & ours.keys()):
        both = kinds[name], ours[name]
        if both in _OTHER_KIND:
            yield _Form(name, _OTHER_KIND[both].format(name), 0, axis=False)
        if both in _ENTRIES:
            yield _Form(name, _ENTRIES[both].format(name), 2, axis=True)
    values, held = dict(theirs), dict(mine)
    for name in sorted((values.keys() & held.keys()) - kinds.keys() - ours.keys()):
        paths = program.full_path(name), source.full_path(name)
        if paths == (name, name) and not _NO_TENSORS.fullmatch(held[name]):
            whole = _WHOLE.fullmatch(held[name]) and _WHOLE.fullmatch(values[name])
            yield _Form(name, f"{name}[None]", 0 if whole else 2, axis=True)


def _assignments(program: ParsedFile, statement: Statement) -> Iterator[tuple[str, str]]:
    """Yield the local names that a statement assigns, each with its value's text: for a tuple the
    entry, or the whole value where it is no tuple.
    """
    one = statement.node.body[0] if isinstance(statement.node, cst.SimpleStatementLine) else None
    if not isinstance(one, cst.Assign):
        return
    target, value = one.targets[0].target, one.value
    names = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
    values: list[cst.BaseExpression] = [value] * len(names)
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        values = [each.value for each in value.elements]
    for name, each in zip(names, values, strict=False):
        if isinstance(name, cst.Name):
            yield name.value, program.code(each)


def _containers(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the kinds of the containers that statements assign to names, "list" or "dict"; a name
    for containers of both kinds is left out.
    """
    found: dict[str, set[str]] = {}
    for name, value in values:
        kinds = (kind for kind, pattern in _KINDS.items() if pattern.fullmatch(value))
        found.setdefault(name, set()).add(next(kinds, ""))
    return {name: kind for name, (kind, *others) in found.items() if kind and not others}


def _in_forms_of_vllm(
    source: ParsedFile,
    theirs: Statement,
    program: ParsedFile,
    mine: Statement,
    clues: Clues,
    forms: Sequence[_Form],
) -> Iterator[Change]:
    """Take a statement of `hf`, with its values in the forms that they need in `vllm`."""
    if isinstance(theirs.node, cst.With):
        return
    used = [one for one in forms if one.name in names_in(theirs.text)]
    kept = {one.name: one.text for one in used if not one.axis}
    if kept:
        for text in port_with_names(source, theirs, clues, kept, axis=False)[:2]:
            yield change(4, _OTHER_CONTAINER, program.put(mine, text))
    value = theirs.text.partition(" = ")[2]
    if not _AXES.search(theirs.text) or _NO_TENSORS.fullmatch(value):
        return
    whole = {one.name: one.text for one in used if one.axis and not one.cost}
    ways = [(0, whole), *((one.cost, {**whole, one.name: one.text}) for one in used if one.cost)]
    for cost, names in ways:
        for text in port_with_names(source, theirs, clues, {**kept, **names}, axis=True)[:2]:
            longer = text.count("[None]") > theirs.text.count("[None]")
            for more, form in enumerate((text, *_without_first_axis(text)) if longer else ()):
                yield change(4 + cost + more, _WITH_AXIS, program.put(mine, form))


def _without_first_axis(text: str) -> Iterator[str]:
    """Yield an assignment whose value has its first axis removed, unless it is indexed already."""
    found = re.fullmatch(r"(\w+ = )(.+?)((?:\.clone\(\))?(?:\.save\(\))?)", text, re.DOTALL)
    if found and is_python(found[2]) and not found[2].endswith("]"):
        value = enclosed(cst.parse_expression(found[2]), found[2])
        yield f"{found[1]}{value}[0]{found[3]}"


def _completed(
    found: Change, program: ParsedFile, hf: Sequence[Statement], vllm: Sequence[Statement]
) -> Change:
    """Return a change with the statements of `hf` that assign the names that `vllm` lacks."""
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

"""The smallest edit of known.yaml after which a run is as expected.

An entry is narrowed to what still holds; one that holds nowhere is removed; what failed
unexpectedly gets an entry for each cause at the end, with the versions that have it where the same
cells do otherwise in another environment, and with a bound where its words name no cause. Bounds
that are there are never widened. Cells that the run did not have stay as they were. Only the lines
concerned are touched: all else is kept byte for byte. Expired entries, faults of the harness, what
no bound can hold and entries that still hold in one environment of several are left for a person to
decide.
"""

from __future__ import annotations

import datetime as dt
import difflib
import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from conformance.errors import ConformanceError
from conformance.expectations.assess import Assessed, assess, explains
from conformance.expectations.conclusion import plural
from conformance.expectations.conditions import where_of
from conformance.expectations.entries import AXES, Known, Match
from conformance.expectations.minimal_matches import cover
from conformance.expectations.sizes import SIZED, bound_for, largest_error, says_nothing
from conformance.expectations.telling_apart import telling_apart
from conformance.expectations.yaml_rewrite import Splice
from conformance.records import Cell, CellResult, Finding, Precision, Results, record
from conformance.shortening import clip

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
#: A file on this machine: of a cache, an environment, a clone. What it is called may matter.
_PATH = re.compile(r"(?:(?<![\w.])~)?(?:/[^\s/:;,'\"()\[\]]+)+/(?=[^\s/])")
#: What differs between cells that failed for one reason.
_VARIES = re.compile(rf"{_PATH.pattern}|{_NUMBER.pattern}", re.IGNORECASE)
#: Of cells that no entry can be proposed for: their words name no cause, and no bound can hold.
_NO_BOUND = "off without a known cause, too far or by no size; write the entry yourself"
_WIDTH = 96
_REASON = 200


@record()
class Update:
    """The new text of the file, and what was done to it, a line each."""

    text: str
    changes: tuple[str, ...] = ()
    unsolved: tuple[str, ...] = ()


def update(
    text: str, known: Known, results: Results, cells: Collection[Cell], today: dt.date
) -> Update:
    """What known.yaml should say after this run. `cells` are all that there could be.

    `known` is what `text` holds. Raises ConformanceError for a list in flow style.
    """
    assessed = assess(results, known, today)
    universe = set(cells) | {result.plain for result in assessed}
    splice = Splice(text, known.path)
    places = where_of(results)
    changes: list[str] = []
    unsolved: list[str] = []
    new = _new(assessed)
    undecided = {result.plain for group in new if _boundless(group) for result in group}
    for index, entry in enumerate(known.own):
        matched = {cell for cell in universe if cell in entry}
        given_up, line = _given_up(known, index, assessed) - undecided, known.line(index)
        if both := given_up & _held(known, index, assessed):
            unsolved.append(
                f"line {line}: {plural(len(both), 'cell')} as it says in one environment, and not "
                "in another: give it `when: { versions: … }`"
            )
        keep = matched - (given_up - both)
        if keep == matched and matched:
            continue
        if not keep:
            splice.remove(index)
            changes.append(f"line {line}: removed, it holds for no cell any more")
            continue
        matches = cover(keep, universe - keep)
        splice.narrow(index, [_flow(match) for match in matches])
        changes.append(f"line {line}: narrowed to {len(keep)} of {len(matched)} cells")
    for group in new:
        if _boundless(group):
            unsolved += [f"{result.cell.id}: {_NO_BOUND}: {result.words}" for result in group]
            continue
        cells_of = {result.plain for result in group}
        when = telling_apart(group, assessed, places)
        splice.append(_block(cover(cells_of, universe - cells_of), group, today, when))
        verdict = group[0].cell.verdict.value
        changes.append(f"added: {verdict} of {plural(len(group), 'cell')}: {_reason(group)}")
    unsolved += [
        f"{result.cell.id}: {result.finding.value}: {result.words}"
        for result in assessed
        if result.finding in (Finding.EXPIRED, Finding.HARNESS)
    ]
    return Update(splice.text() if changes else text, tuple(changes), tuple(unsolved))


def difference(old: str, new: str, path: Path) -> str:
    """A unified diff; empty when nothing changed."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), str(path), str(path)
    )
    return "".join(lines)


def _given_up(known: Known, index: int, assessed: Sequence[Assessed]) -> set[Cell]:
    """The cells that the entry has to give up: those that pass, and where it explains no cell at
    all those that fail otherwise, or by what other entries say. None where it holds sometimes.
    """
    entry = known.entries[index]
    matched = [result for result in assessed if index in result.entries]
    given_up = {Finding.STALE}
    if not any(explains(entry, result.cell) for result in matched):
        given_up |= {Finding.UNEXPECTED, Finding.KNOWN}
    cells = {result.plain for result in matched if result.finding in given_up}
    return set() if entry.sometimes else cells


def _held(known: Known, index: int, assessed: Sequence[Assessed]) -> set[Cell]:
    """The cells that the entry explains."""
    return {
        result.plain
        for result in assessed
        if index in result.entries and explains(known.entries[index], result.cell)
    }


def _new(assessed: Sequence[Assessed]) -> list[list[Assessed]]:
    """The unexpected cells by their cause: those that say the same but for numbers and paths."""
    groups: dict[tuple[str, str, bool], list[Assessed]] = {}
    for result in assessed:
        if result.finding is Finding.UNEXPECTED:
            cause = _VARIES.sub("#", _words(result.cell))
            key = (result.cell.verdict.value, cause, _in_bf16_alone(result.cell))
            groups.setdefault(key, []).append(result)
    return list(groups.values())


def _in_bf16_alone(cell: CellResult) -> bool:
    """It fails in bf16 and passes in float32: an entry for it excuses no other meaning."""
    meaning = cell.meaning
    return cell.precision is Precision.BF16 and meaning is not None and meaning.passes


def _words(cell: CellResult) -> str:
    return cell.diagnosis or cell.reason


def _reason(group: Sequence[Assessed]) -> str:
    words = " ".join(_PATH.sub("", _words(group[0].cell)).split()) or "no reason was recorded"
    if len(words) <= _REASON:
        return words
    return words[:_REASON].rpartition("; ")[0] or clip(words, _REASON)


def _says(group: Sequence[Assessed]) -> str:
    """The longest words that every cell of a cause says alike."""
    pieces = (" ".join(piece.split()) for piece in _VARIES.split(_words(group[0].cell)))
    texts = [
        f"{result.cell.reason}\n{result.cell.diagnosis}\n{result.cell.detail}" for result in group
    ]
    alike = [piece for piece in pieces if all(piece in text for text in texts)]
    longest = max(alike, key=len, default="").strip(" ;:,.")
    if len(longest) > _WIDTH:
        longest = longest[: _WIDTH + 1].rpartition(" ")[0] or longest[:_WIDTH]
    return longest.strip(" ;:,.")


def _at_most(group: Sequence[Assessed]) -> float | None:
    """The bound of an entry whose words would excuse any wrongness; None where they do not."""
    if not _needs_bound(group):
        return None
    sizes = [largest_error(result.cell) for result in group]
    known = [size for size in sizes if size is not None]
    return bound_for(max(known)) if len(known) == len(sizes) else None


def _needs_bound(group: Sequence[Assessed]) -> bool:
    return group[0].cell.verdict in SIZED and says_nothing(_says(group))


def _boundless(group: Sequence[Assessed]) -> bool:
    return _needs_bound(group) and _at_most(group) is None


def _flow(match: Match) -> str:
    """A match in one line, only what it restricts."""
    mapping = CommentedMap()
    for axis in AXES:
        patterns = match.patterns(axis)
        if patterns != ("*",):
            mapping[axis] = patterns[0] if len(patterns) == 1 else list(patterns)
    if not mapping:
        raise ConformanceError(
            "an entry would excuse every cell", remedy="nothing runs any more: mend that first"
        )
    mapping.fa.set_flow_style()
    return f"{{ {_dumped(mapping, width=1 << 20)[1:-1]} }}"


def _block(
    matches: Sequence[Match], group: Sequence[Assessed], today: dt.date, when: Mapping[str, Any]
) -> str:
    """A new entry's lines, without indentation."""
    first = group[0].cell
    rest = CommentedMap()
    rest["verdict"] = first.verdict.value
    if says := _says(group):
        rest["says"] = says
    if (at_most := _at_most(group)) is not None:
        rest["at_most"] = at_most
    if _in_bf16_alone(first):
        rest["precision"] = Precision.BF16.value
    if when:
        rest["when"] = CommentedMap(when)
        rest["when"].fa.set_flow_style()
    rest["reason"] = _reason(group)
    rest["reproduce"] = first.command
    rest["date"] = today
    match, *further = map(_flow, matches)
    also = [f"  also: [{', '.join(further)}]"] if further else []
    lines = (f"  {line}" for line in _dumped(rest, width=_WIDTH).splitlines())
    return "\n".join([f"- match: {match}", *also, *lines])


def _dumped(value: object, *, width: int) -> str:
    yaml = YAML(typ="rt")
    yaml.width = width
    out = io.StringIO()
    yaml.dump(value, out)
    return out.getvalue().rstrip("\n")

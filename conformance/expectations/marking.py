"""Record in a judged run's cells how they compare with known.yaml."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

from conformance.expectations.assess import Assessed, Standing, assess, standing
from conformance.expectations.conclusion import concluded
from conformance.expectations.conditions import listed
from conformance.expectations.entries import KnownGaps
from conformance.records import Finding, Gap, Results

#: Standings in order of precedence among one cause's entries.
_WORST = (
    *(Standing.EXPIRED, Standing.STALE, Standing.REDUNDANT),
    *(Standing.USED, Standing.NOT_SEEN, Standing.NOT_HERE, Standing.NOT_RUN),
)


def marked(results: Results, known: KnownGaps, today: dt.date) -> Results:
    """Return the run with each cell's finding, the gaps that matter, and the exit code."""
    return with_findings(results, known, assess(results, known, today), today)


def with_findings(
    results: Results, known: KnownGaps, assessed: Sequence[Assessed], today: dt.date
) -> Results:
    """Like `marked`, for cells that are already assessed, perhaps settled by repetitions."""
    standings = standing(assessed, known, today, selection=results.selection)
    gaps: dict[tuple[str, str], Gap] = {}
    for index, entry in enumerate(known.entries):
        key = (entry.reason, entry.link)
        line = (known.line(index) or 0,)
        if key in gaps:
            lines = gaps[key].lines + line
            worst = min(gaps[key].standing, standings[index].value, key=_rank)
            gaps[key] = replace(gaps[key], standing=worst, lines=lines)
        else:
            gaps[key] = Gap(
                reason=entry.reason,
                standing=standings[index].value,
                date=entry.date.isoformat(),
                link=entry.link,
                reproduce=entry.reproduce,
                whose=entry.whose,
                versions=entry.when.versions,
                device=" or ".join(listed(entry.when.device)),
                lines=line,
                prediction=entry.prediction,
            )
    here = {key: gap for key, gap in gaps.items() if _rank(gap.standing) <= _rank("used")}
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
    return concluded(run, strict_numerics=results.footer.strict_numerics)


def _rank(name: str) -> int:
    return _WORST.index(Standing(name))

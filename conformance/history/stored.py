"""Read the runs of a reports folder, keeping only what the history needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.expectations import Conclusion, conclusion_of
from conformance.records import Precision, Results, record
from conformance.report.sections.findings import CellsSummary, by_group
from conformance.store import RunFolder


@record()
class Past:
    """One run. `summaries` and `margins` are by model and column. A margin is the largest share of
    its float32 limit that a passing observation used, 0 to 1. `versions` lists all versions of each
    package that the workers ran with.
    """

    id: str
    started: str
    conclusion: Conclusion
    versions: Mapping[str, tuple[str, ...]]
    summaries: Mapping[tuple[str, str], CellsSummary]
    margins: Mapping[tuple[str, str], float]


def stored(reports: Path, last: int, progress: Callable[[str], None]) -> tuple[Past, ...]:
    """Return the newest `last` judged runs, oldest first. Merged, unfinished and unreadable runs
    are left out. `progress` receives the name of each run that is read.

    Raises ConformanceError if there is none.
    """
    pasts: list[Past] = []
    for path in sorted(reports.glob("*/results.json"), reverse=True):
        folder = path.parent
        if len(pasts) == last:
            break
        if folder.is_symlink() or "+" in folder.name:
            continue
        with suppress(ConformanceError):
            progress(folder.name)
            pasts.append(past(RunFolder(folder).results()))
    if not pasts:
        raise ConformanceError(
            "no judged run is here", path=reports, remedy="start one: conformance run"
        )
    return tuple(reversed(pasts))


def past(results: Results) -> Past:
    """Return the history entry of a run."""
    return Past(
        id=results.run.id,
        started=results.run.started,
        conclusion=conclusion_of(results),
        versions=_versions(results),
        summaries=by_group(results),
        margins=_margins(results),
    )


def _versions(results: Results) -> dict[str, tuple[str, ...]]:
    versions_of: dict[str, dict[str, None]] = {}
    for versions in (group.versions for group in results.groups):
        for package, version in versions.items():
            versions_of.setdefault(package, {})[version] = None
    return {package: tuple(versions) for package, versions in versions_of.items()}


def _margins(results: Results) -> dict[tuple[str, str], float]:
    """Return margins by model and column. `cell.beside` is the result in the other precision."""
    limits = results.environment.thresholds.of(Precision.FLOAT32)
    margins: dict[tuple[str, str], float] = {}
    for cell in results.cells:
        meaning = cell if cell.precision is Precision.FLOAT32 else cell.beside
        if meaning is None or meaning.precision is not Precision.FLOAT32:
            continue
        shares = [
            max((judged.q_med or 0.0) / limits.k_med, (judged.q_max or 0.0) / limits.k_max)
            for judged in meaning.observations
            if judged.verdict.passes
        ]
        if shares:
            key = (cell.model, cell.backend)
            margins[key] = max(margins.get(key, 0.0), *shares)
    return margins

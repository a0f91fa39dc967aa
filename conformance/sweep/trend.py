"""Versions × scenarios of a run whose columns stand on many environments (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from conformance.errors import ConformanceError, ExitCode
from conformance.records import CellResult, Group, Results, Verdict
from conformance.report.sections.findings import blamed
from conformance.report.verdict_styles import ORDER, worst
from conformance.report.words import headline
from conformance.sweep.changes import changes
from conformance.sweep.points import Swept
from conformance.sweep.records import SCHEMA, Engine, Explained, Mark, Row, Trend


def trend(results: Results, swept: Swept, bits: Mapping[str, str]) -> Trend:
    """The rows, what changed along each package's versions, and every cell that did not pass.

    `bits` maps a cell that observed something to a digest of all its observations.
    Raises ConformanceError when a worker ran with other versions than its column says.
    """
    _refuse_mixed_up(results, swept)
    rows = tuple(_rows(results, swept, bits))
    engines = tuple(_engines(results, swept))
    return Trend(
        schema=SCHEMA,
        run=results.run.id,
        axes=swept.axes,
        points=swept.points,
        rows=rows,
        engines=engines,
        changes=tuple(changes(rows, engines, swept)),
        explained=_explained(results, swept),
        seconds=results.run.seconds,
        cells=len(results.cells),
        verdicts=dict(Counter(cell.verdict.value for cell in results.cells)),
    )


def places(results: Results) -> dict[str, tuple[str, str]]:
    """Each column's backend and point."""
    return {column.id: (column.backend.id, column.environment) for column in results.columns}


def _refuse_mixed_up(results: Results, swept: Swept) -> None:
    versions_of = {point.name: point.asked for point in swept.points}
    points = {column.id: column.environment for column in results.columns}
    for column, point in points.items():
        if point not in versions_of:
            raise ConformanceError(
                f"the column {column} of run {results.run.id} stands on no combination of versions "
                "that was swept",
                remedy="its plan.json or points.json is damaged: sweep again",
            )
    for group in results.groups:
        wanted = versions_of.get(points.get(group.backend, ""), {})
        for package, version in wanted.items():
            if group.versions and group.versions.get(package, version) != version:
                raise ConformanceError(
                    f"{group.model} on {group.backend} ran with {package} "
                    f"{group.versions[package]}",
                    remedy="remove this environment: conformance env remove",
                    code=ExitCode.HARNESS,
                )


def _rows(results: Results, swept: Swept, bits: Mapping[str, str]) -> Iterator[Row]:
    cells: dict[tuple[str, str, str], dict[str, list[CellResult]]] = {}
    where = places(results)
    for cell in results.cells:
        backend, point = where[cell.backend]
        at_points = cells.setdefault((cell.model, backend, cell.scenario), {})
        at_points.setdefault(point, []).append(cell)
    architecture = {cell.model: cell.architecture for cell in results.cells}
    for (model, backend, scenario), by_point in cells.items():
        points = [point.name for point in swept.points if point.name in by_point]
        numbers = _numbers([[bits.get(cell.id, "") for cell in by_point[name]] for name in points])
        marks = tuple(
            _mark(name, by_point[name], number)
            for name, number in zip(points, numbers, strict=True)
        )
        yield Row(model, architecture[model], backend, scenario, marks)


def _mark(point: str, cells: Sequence[CellResult], bits: int) -> Mark:
    bad = min(cells, key=lambda cell: ORDER[cell.verdict])
    return Mark(
        point,
        worst(cell.verdict for cell in cells),
        len(cells),
        sum(cell.verdict.passes for cell in cells),
        "" if bad.verdict.passes else headline(bad),
        bits,
    )


def together(marks: Sequence[Mark]) -> Mark:
    """Several scenarios at one point as one mark."""
    bad = min(marks, key=lambda mark: ORDER[mark.verdict])
    cells, passed = (sum(getattr(mark, name) for mark in marks) for name in ("cells", "passed"))
    return Mark(bad.point, bad.verdict, cells, passed, bad.words)


def _numbers(row: Sequence[Sequence[str]]) -> list[int]:
    """One number for each point: equal where all the cases observed the very same bits."""
    known: list[Sequence[str]] = []
    numbers = []
    for digests in row:
        if not all(digests):
            numbers.append(0)
            continue
        if digests not in known:
            known.append(digests)
        numbers.append(known.index(digests) + 1)
    return numbers


def _engines(results: Results, swept: Swept) -> Iterator[Engine]:
    where = places(results)
    groups = {
        (group.model, *where[group.backend]): group
        for group in results.groups
        if group.backend in where
    }
    for model in dict.fromkeys(cell.model for cell in results.cells):
        for backend in dict.fromkeys(where[cell.backend][0] for cell in results.cells):
            groups_of = [groups.get((model, backend, point.name)) for point in swept.points]
            yield Engine(model, backend, tuple(map(_identity, groups_of)))


def _identity(group: Group | None) -> str:
    if group is None:
        return ""
    parts = (str(group.identity.get("model", "")), group.layout)
    return ", ".join(filter(None, parts))


def _explained(results: Results, swept: Swept) -> tuple[Explained, ...]:
    """Cells that did not pass, gathered by what is said of them, the worst first."""
    by_cause: dict[tuple[Verdict, str, str, str], list[CellResult]] = {}
    for cell in results.cells:
        if not cell.verdict.passes:
            key = (cell.verdict, headline(cell), blamed(cell), cell.expected)
            by_cause.setdefault(key, []).append(cell)
    order = [point.name for point in swept.points]
    where = places(results)
    explained = [
        Explained(
            verdict,
            words,
            tuple(dict.fromkeys(cell.model for cell in cells)),
            tuple(dict.fromkeys(where[cell.backend][0] for cell in cells)),
            tuple(sorted({where[cell.backend][1] for cell in cells}, key=order.index)),
            tuple(dict.fromkeys(cell.scenario for cell in cells)),
            len(cells),
            cells[0].id,
            cells[0].command,
            who,
            expected,
        )
        for (verdict, words, who, expected), cells in by_cause.items()
    ]
    return tuple(
        sorted(explained, key=lambda row: (bool(row.expected), ORDER[row.verdict], -row.cells))
    )

"""Versions × scenarios of a run whose columns stand on many environments (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from conformance.errors import ConformanceError, ExitCode
from conformance.records import CellResult, Group, Results, Verdict, record
from conformance.report.findings import blamed, headline
from conformance.report.looks import ORDER, worst
from conformance.sweep.points import Point, Swept

SCHEMA = "conformance-sweep/1"


@record()
class Mark:
    """A scenario on one model and backend at one point: how its cases ended.

    `bits` numbers what was observed: equal numbers in a row are bitwise equal observations;
    0 where nothing was.
    """

    point: str
    verdict: Verdict
    cells: int
    passed: int
    words: str = ""
    bits: int = 0


@record()
class Row:
    """One scenario, or "" for what the engine said of itself, along all points in order."""

    model: str
    architecture: str
    backend: str
    scenario: str
    marks: tuple[Mark, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """Which marks stand for other bits than the last one before that observed anything."""
        found, last = [], 0
        for at, mark in enumerate(self.marks):
            if mark.bits and last not in (0, mark.bits):
                found.append(at)
            last = mark.bits or last
        return tuple(found)


@record()
class Change:
    """What one step of one package's version changed, in which scenarios of which columns.

    `at` names the versions of the other packages with which it did, "" for all of them.
    """

    model: str
    package: str
    before: str
    after: str
    what: str
    backends: tuple[str, ...]
    scenarios: tuple[str, ...]
    at: str = ""


@record()
class Explained:
    """Cells that did not pass, alike in verdict and words. `expected` is what known.yaml says."""

    verdict: Verdict
    words: str
    models: tuple[str, ...]
    backends: tuple[str, ...]
    points: tuple[str, ...]
    scenarios: tuple[str, ...]
    cells: int
    example: str
    command: str
    blamed: str = ""
    expected: str = ""


@record()
class Engine:
    """What an engine was at each point: its class and the layout of its stream."""

    model: str
    backend: str
    said: tuple[str, ...]


@record()
class Trend:
    """`sweep.json`, whole."""

    schema: str
    run: str
    axes: Mapping[str, tuple[str, ...]]
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    engines: tuple[Engine, ...]
    changes: tuple[Change, ...]
    explained: tuple[Explained, ...]
    seconds: float
    cells: int
    verdicts: Mapping[str, int] = field(default_factory=dict)


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
        changes=tuple(_changes(rows, engines, swept)),
        explained=_explained(results, swept),
        seconds=results.run.seconds,
        cells=len(results.cells),
        verdicts=dict(Counter(cell.verdict.value for cell in results.cells)),
    )


def split(column: str) -> tuple[str, str]:
    """A column's backend and point."""
    backend, _, point = column.partition("@")
    return backend, point


def _refuse_mixed_up(results: Results, swept: Swept) -> None:
    asked = {point.name: point.asked for point in swept.points}
    for group in results.groups:
        wanted = asked.get(split(group.backend)[1], {})
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
    for cell in results.cells:
        backend, point = split(cell.backend)
        mine = cells.setdefault((cell.model, backend, cell.scenario), {})
        mine.setdefault(point, []).append(cell)
    architecture = {cell.model: cell.architecture for cell in results.cells}
    for (model, backend, scenario), by_point in cells.items():
        points = [one.name for one in swept.points if one.name in by_point]
        numbers = _numbers([[bits.get(one.id, "") for one in by_point[name]] for name in points])
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
    groups = {(group.model, group.backend): group for group in results.groups}
    for model in dict.fromkeys(cell.model for cell in results.cells):
        for backend in dict.fromkeys(split(cell.backend)[0] for cell in results.cells):
            mine = [groups.get((model, f"{backend}@{one.name}")) for one in swept.points]
            yield Engine(model, backend, tuple(map(_said, mine)))


def _said(group: Group | None) -> str:
    if group is None:
        return ""
    parts = (str(group.identity.get("model", "")), group.layout)
    return ", ".join(filter(None, parts))


def _changes(rows: Sequence[Row], engines: Sequence[Engine], swept: Swept) -> Iterator[Change]:
    """Along every package: each pair of neighbouring versions, the others' held fast."""
    names = {_key(one.asked): index for index, one in enumerate(swept.points)}
    series: list[tuple[str, str, str, list[str]]] = [
        (row.model, row.backend, row.scenario, [_short(mark) for mark in row.marks])
        for row in rows
        if len(row.marks) == len(swept.points)
    ]
    series += [(one.model, one.backend, "", list(one.said)) for one in engines]
    found: dict[tuple[str, str, str, str, str], dict[str, list[tuple[str, str]]]] = {}
    for package, versions in swept.axes.items():
        for one in swept.points:
            at = versions.index(one.asked[package])
            if at + 1 == len(versions):
                continue
            later = names[_key({**one.asked, package: versions[at + 1]})]
            here = names[_key(one.asked)]
            rest = ", ".join(f"{k} {v}" for k, v in one.asked.items() if k != package)
            for model, backend, scenario, said in series:
                if said[here] != said[later] and said[here] and said[later]:
                    what = f"{said[here]} → {said[later]}"
                    key = (model, package, versions[at], versions[at + 1], what)
                    found.setdefault(key, {}).setdefault(rest, []).append((backend, scenario))
    for (model, package, before, after, what), by_rest in found.items():
        others = len(swept.points) // len(swept.axes[package])
        everywhere = len(by_rest) == others
        where = [pair for pairs in by_rest.values() for pair in pairs]
        yield Change(
            model,
            package,
            before,
            after,
            what,
            tuple(dict.fromkeys(backend for backend, _ in where)),
            tuple(dict.fromkeys(scenario for _, scenario in where if scenario)),
            "" if everywhere else "; ".join(by_rest),
        )


def _key(asked: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(asked.items()))


def _short(mark: Mark) -> str:
    if mark.verdict.passes:
        return "passes"
    return mark.verdict.value if mark.passed == 0 else f"{mark.verdict.value} in some cases"


def _explained(results: Results, swept: Swept) -> tuple[Explained, ...]:
    """Cells that did not pass, gathered by what is said of them, the worst first."""
    found: dict[tuple[Verdict, str, str, str], list[CellResult]] = {}
    for cell in results.cells:
        if not cell.verdict.passes:
            key = (cell.verdict, headline(cell), blamed(cell), cell.expected)
            found.setdefault(key, []).append(cell)
    order = [point.name for point in swept.points]
    explained = [
        Explained(
            verdict,
            words,
            tuple(dict.fromkeys(cell.model for cell in cells)),
            tuple(dict.fromkeys(split(cell.backend)[0] for cell in cells)),
            tuple(sorted({split(cell.backend)[1] for cell in cells}, key=order.index)),
            tuple(dict.fromkeys(cell.scenario for cell in cells)),
            len(cells),
            cells[0].id,
            cells[0].command,
            who,
            expected,
        )
        for (verdict, words, who, expected), cells in found.items()
    ]
    return tuple(
        sorted(explained, key=lambda one: (bool(one.expected), ORDER[one.verdict], -one.cells))
    )

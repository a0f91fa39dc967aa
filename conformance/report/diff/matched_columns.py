"""Compare the columns of two runs: which match, and their layouts, engines and costs (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from conformance.spec.records import Cell, CellResult, Column, Group, Precision, Results, record

#: Keys of a worker's identity that describe the weights and not the backend.
_NOT_COMPARED = frozenset({"digest", "source", "members", "float32_disagreement", "served_by_pid"})

#: Workers that are not columns.
_NO_COLUMN = frozenset({"reference", "reference-forced", "build"})

#: Smaller differences are noise of the machine.
_SECONDS, _MIB = 1.0, 64.0


@record()
class GroupChange:
    """One fact of a model on a backend that changed."""

    model: str
    backend: str
    what: str
    before: str
    after: str


@record()
class Cost:
    """Seconds or MiB of one model on one backend, in both runs."""

    model: str
    backend: str
    what: str
    unit: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        return self.after / self.before if self.before else float("inf")


def layouts(before: Results, after: Results) -> tuple[GroupChange, ...]:
    """Return columns whose layout or engine identity changed. A change in both precisions is
    reported once.
    """
    changes = (
        GroupChange(a.model, a.backend, fact, old, new)
        for a, b in _pairs(before, after)
        for fact, old, new in _facts(a, b)
    )
    return tuple(dict.fromkeys(changes))


def costs(before: Results, after: Results, *, factor: float) -> tuple[Cost, ...]:
    """Return columns whose cost changed by at least `factor`, in either direction."""
    costs: list[Cost] = []
    for a, b in _pairs(before, after):
        if a.reused or b.reused:
            continue
        for figure, unit, least, old, new in (
            ("loading", "s", _SECONDS, a.load_seconds, b.load_seconds),
            ("running", "s", _SECONDS, a.seconds, b.seconds),
            ("memory", "MiB", _MIB, a.peak_mib, b.peak_mib),
        ):
            small, large = sorted((old, new))
            if large - small >= least and small > 0 and large / small >= factor:
                name = f"{figure} in {a.precision}" if a.precision is Precision.FLOAT32 else figure
                costs.append(Cost(a.model, a.backend, name, unit, old, new))
    return tuple(costs)


def _pairs(before: Results, after: Results) -> Iterator[tuple[Group, Group]]:
    partners = {(group.model, group.backend, group.precision): group for group in after.groups}
    for group in before.groups:
        partner = partners.get((group.model, group.backend, group.precision))
        if partner is not None and group.backend not in _NO_COLUMN:
            yield group, partner


def _facts(a: Group, b: Group) -> Iterator[tuple[str, str, str]]:
    # A group that never started has no layout or identity; its cells report that.
    if a.layout and b.layout and a.layout != b.layout:
        yield "layout", a.layout, b.layout
    if a.identity and b.identity:
        for key in sorted({*a.identity, *b.identity} - _NOT_COMPARED):
            old, new = _fact(a.identity, key), _fact(b.identity, key)
            if old != new:
                yield key, old, new


def _fact(identity: Mapping[str, object], key: str) -> str:
    return str(identity[key]) if key in identity else "not said"


def match_columns(a: Results, b: Results) -> tuple[Results, Results]:
    """Return both runs with matching columns renamed alike, whatever their environments. Columns of
    the same name match; so do a backend's others if each run has just one.

    A matched column takes its backend's name, or its name in the second run if the backend's name
    is taken. Other columns keep their names, because the match would be ambiguous.
    """
    before_columns, after_columns = dict[str, Column](), dict[str, Column]()
    for backend in dict.fromkeys(column.backend.id for column in a.columns):
        first, second = _without_partner(a, b, backend), _without_partner(b, a, backend)
        if len(first) == len(second) == 1:
            [before], [after] = first, second
            named_so = any(c.backend.id == backend and c.id != before.id for c in a.columns)
            named = after if named_so else Column(after.backend)
            before_columns[before.id] = after_columns[after.id] = named
    return _named(a, before_columns), _named(b, after_columns)


def _without_partner(run: Results, other: Results, backend: str) -> list[Column]:
    """Return the run's columns of a backend whose names the other run does not have."""
    known = {column.id for column in other.columns}
    return [
        column for column in run.columns if column.backend.id == backend and column.id not in known
    ]


def _named(results: Results, columns: dict[str, Column]) -> Results:
    now = {column.id: columns.get(column.id, column) for column in results.columns}
    called = {old: column.id for old, column in now.items()}
    return replace(
        results,
        columns=tuple(now.values()),
        groups=tuple(
            replace(group, backend=called.get(group.backend, group.backend))
            for group in results.groups
        ),
        cells=tuple(_renamed(cell, called[cell.backend]) for cell in results.cells),
    )


def _renamed(cell: CellResult, column: str) -> CellResult:
    plain = Cell(cell.model, column, cell.scenario, cell.case)
    return replace(cell, id=plain.id, backend=column)

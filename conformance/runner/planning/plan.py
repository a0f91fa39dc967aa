"""Expand models × backends × cases to cells, and select from them (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from conformance.errors import ConformanceError
from conformance.runner.planning.expression import matcher
from conformance.spec.records import Backend, Cell, Column, MissingPart, Model
from conformance.spec.scenario import Scenario

Item = TypeVar("Item", Model, Backend)

#: Selects every model or every column.
ALL = "all"


def choose(items: Sequence[Item], wanted: Iterable[str], kind: str) -> tuple[Item, ...]:
    """Return the items with these ids, in the manifest's order; all for none or "all".

    Raises ConformanceError with the valid ids for one that does not exist.
    """
    names = list(wanted)
    if ALL in names:
        return tuple(items)
    _require(names, [item.id for item in items], kind)
    return tuple(item for item in items if not names or item.id in names)


def _require(names: Iterable[str], known: Collection[str], kind: str, whose: str = "") -> None:
    for name in names:
        if name not in known:
            raise ConformanceError(
                f"there is no {kind} {name!r}{whose}", remedy=f"one of: {', '.join(known)}"
            )


def cells(
    models: Sequence[Model],
    columns: Sequence[Column] | Sequence[Backend],
    scenarios: Mapping[str, Scenario],
    expression: str = "",
) -> tuple[Cell, ...]:
    """Return every requested cell, grouped by model, then column, then scenario.

    Cases that need parts the model lacks, or are for another tier, are omitted. Raises
    ConformanceError if nothing is left: an empty run would look green.
    """
    product = _product(models, columns, scenarios, expression)
    return _some((cell for cell, missing in product if not missing), expression)


def missing_parts(
    models: Sequence[Model],
    columns: Sequence[Column] | Sequence[Backend],
    scenarios: Mapping[str, Scenario],
    expression: str = "",
) -> tuple[MissingPart, ...]:
    """Return which parts the requested cells need and models lack, by scenario."""
    omitted: dict[tuple[str, str], list[Cell]] = {}
    for cell, missing in _product(models, columns, scenarios, expression):
        for part in missing:
            omitted.setdefault((cell.scenario, part), []).append(cell)
    rows = []
    for (scenario, part), cells in sorted(omitted.items()):
        cases = tuple(dict.fromkeys(cell.case for cell in cells))
        every = set(cases) == set(scenarios[scenario].cases)
        lacking = tuple(dict.fromkeys(cell.model for cell in cells))
        rows.append(MissingPart(scenario, part, lacking, () if every else cases))
    return tuple(rows)


def _product(
    models: Sequence[Model],
    columns: Sequence[Column] | Sequence[Backend],
    scenarios: Mapping[str, Scenario],
    expression: str,
) -> Iterator[tuple[Cell, frozenset[str]]]:
    """Yield every requested cell, and the parts that its case needs and its model lacks."""
    wanted = matcher(expression)
    # Expanded once: there are thousands of pairs of a model and a column.
    cases = [
        (scenario.name, case.name, frozenset(scenario.needs(case)), scenario.tier(case))
        for scenario in scenarios.values()
        for case in scenario.expand(1)
    ]
    for model in models:
        for column in columns:
            for scenario, case, needs, tier in cases:
                cell = Cell(model.id, column.id, scenario, case)
                if tier in ("", *model.tiers) and wanted(cell.id):
                    yield cell, needs.difference(model.parts)


def _some(cells: Iterable[Cell], expression: str, tier: str = "") -> tuple[Cell, ...]:
    if chosen := tuple(cells):
        return chosen
    where = f" in tier {tier!r}" if tier else ""
    raise ConformanceError(
        f"no cell{where} matches -k {expression!r}" if expression else "there is nothing to run",
        remedy="see `conformance list`" + (", or choose of all cells: --tier full" if tier else ""),
    )


def matching(cells: Iterable[Cell], expression: str, tier: str) -> tuple[Cell, ...]:
    """Return the cells of a tier that match an expression. Raises ConformanceError for none."""
    wanted = matcher(expression)
    return _some((cell for cell in cells if wanted(cell.id)), expression, tier)


def groups(planned: Iterable[Cell]) -> dict[tuple[str, str], tuple[Cell, ...]]:
    """Group the cells by model and column: one worker runs each group on one engine load."""
    grouped: dict[tuple[str, str], list[Cell]] = {}
    for cell in planned:
        grouped.setdefault((cell.model, cell.backend), []).append(cell)
    return {key: tuple(members) for key, members in grouped.items()}


def in_tier(models: Sequence[Model], tier: str) -> tuple[Model, ...]:
    """Return the models of a tier. Raises ConformanceError if there are none."""
    chosen = tuple(model for model in models if tier in model.tiers)
    if not chosen:
        tiers = sorted({name for model in models for name in model.tiers})
        raise ConformanceError(
            f"no model is in tier {tier!r}", remedy=f"one of: {', '.join(tiers)}"
        )
    return chosen


def narrowed(
    planned: Iterable[Cell],
    models: Sequence[Model],
    columns: Sequence[Column],
    narrow: Mapping[str, str],
) -> tuple[Cell, ...]:
    """Drop the cells of a backend's columns on models outside the backend's tier."""
    tiers = {model.id: model.tiers for model in models}
    wanted = {column.id: narrow.get(column.backend.id) for column in columns}
    return tuple(
        cell
        for cell in planned
        if (tier := wanted[cell.backend]) is None or tier in tiers[cell.model]
    )


def only(scenarios: Mapping[str, Scenario], names: Sequence[str]) -> dict[str, Scenario]:
    """Return the scenarios with these names, or all. Raises ConformanceError if one is unknown."""
    _require(names, scenarios, "scenario", ", which a tier of models.yaml names")
    return {name: scenario for name, scenario in scenarios.items() if not names or name in names}

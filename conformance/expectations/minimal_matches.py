"""Find the fewest matches that cover some cells and no others (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection

from conformance.expectations.conditions import Patterns
from conformance.expectations.entries import Match
from conformance.records import Cell

_SPECIAL = re.compile(r"([*?[])")
_EVERY = "*"


def cover(wanted: Collection[Cell], unwanted: Collection[Cell]) -> tuple[Match, ...]:
    """Return matches that hold for every cell of `wanted` and for none of `unwanted`.

    They are as wide as `unwanted` allows: a whole column of a model, else whole scenarios, else
    cases. Models, then backends, with equal patterns share one match.
    """
    wanted = sorted(wanted)  # a set's order differs from run to run
    by_column: dict[tuple[str, str], set[tuple[Patterns, Patterns]]] = {}
    for column in dict.fromkeys((cell.model, cell.backend) for cell in wanted):
        inside = [cell for cell in wanted if (cell.model, cell.backend) == column]
        outside = [cell for cell in unwanted if (cell.model, cell.backend) == column]
        by_column[column] = set(_within(inside, outside))
    by_models: dict[tuple[str, Patterns, Patterns], tuple[str, ...]] = {}
    for (model, backend), parts in by_column.items():
        for scenario, case in sorted(parts, key=str):
            key = backend, scenario, case
            by_models[key] = (*by_models.get(key, ()), model)
    by_both: dict[tuple[tuple[str, ...], Patterns, Patterns], tuple[str, ...]] = {}
    for (backend, scenario, case), models in by_models.items():
        both = models, scenario, case
        by_both[both] = (*by_both.get(both, ()), backend)
    return tuple(
        Match(_patterns(models), _patterns(backends), scenario, case)
        for (models, scenario, case), backends in by_both.items()
    )


def _within(
    wanted: Collection[Cell], unwanted: Collection[Cell]
) -> list[tuple[Patterns, Patterns]]:
    """Return scenario and case patterns within one column."""
    if not unwanted:
        return [(_EVERY, _EVERY)]
    elsewhere = {cell.scenario for cell in unwanted}
    names = dict.fromkeys(cell.scenario for cell in wanted)
    whole = tuple(name for name in names if name not in elsewhere)
    patterns: list[tuple[Patterns, Patterns]] = [(_patterns(whole), _EVERY)] if whole else []
    for name in names:
        if name in elsewhere:
            cases = tuple(cell.case for cell in wanted if cell.scenario == name)
            patterns.append((_patterns((name,)), _patterns(cases)))
    return patterns


def _patterns(names: tuple[str, ...]) -> Patterns:
    escaped = tuple(dict.fromkeys(_SPECIAL.sub(r"[\1]", name) for name in names))
    return escaped[0] if len(escaped) == 1 else escaped

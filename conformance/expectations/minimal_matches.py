"""The fewest matches that cover some cells and not one other (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection

from conformance.expectations.entries import Match, Patterns
from conformance.records import Cell

_SPECIAL = re.compile(r"([*?[])")
_EVERY = "*"


def cover(wanted: Collection[Cell], others: Collection[Cell]) -> tuple[Match, ...]:
    """Matches that hold for every cell of `wanted` and for none of `others`.

    As wide as `others` allow: a whole column of a model, else whole scenarios, else cases.
    Models, then backends, that need the same are said in one match.
    """
    wanted = sorted(wanted)  # a set's order differs from run to run
    found: dict[tuple[str, str], set[tuple[Patterns, Patterns]]] = {}
    for column in dict.fromkeys((cell.model, cell.backend) for cell in wanted):
        mine = [cell for cell in wanted if (cell.model, cell.backend) == column]
        theirs = [cell for cell in others if (cell.model, cell.backend) == column]
        found[column] = set(_within(mine, theirs))
    by_models: dict[tuple[str, Patterns, Patterns], tuple[str, ...]] = {}
    for (model, backend), parts in found.items():
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


def _within(wanted: Collection[Cell], others: Collection[Cell]) -> list[tuple[Patterns, Patterns]]:
    """Scenario and case patterns within one column."""
    if not others:
        return [(_EVERY, _EVERY)]
    taken = {cell.scenario for cell in others}
    names = dict.fromkeys(cell.scenario for cell in wanted)
    whole = tuple(name for name in names if name not in taken)
    found: list[tuple[Patterns, Patterns]] = [(_patterns(whole), _EVERY)] if whole else []
    for name in names:
        if name in taken:
            cases = tuple(cell.case for cell in wanted if cell.scenario == name)
            found.append((_patterns((name,)), _patterns(cases)))
    return found


def _patterns(names: tuple[str, ...]) -> Patterns:
    escaped = tuple(dict.fromkeys(_SPECIAL.sub(r"[\1]", name) for name in names))
    return escaped[0] if len(escaped) == 1 else escaped

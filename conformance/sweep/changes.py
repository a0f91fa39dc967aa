"""What each step of one package's version changed (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from conformance.sweep.points import Swept
from conformance.sweep.records import Change, Engine, Mark, Row


def changes(rows: Sequence[Row], engines: Sequence[Engine], swept: Swept) -> Iterator[Change]:
    """What each step from one version to the next changed, the other packages' held fast."""
    names = {_key(point.asked): index for index, point in enumerate(swept.points)}
    series: list[tuple[str, str, str, list[str]]] = [
        (row.model, row.backend, row.scenario, [_short(mark) for mark in row.marks])
        for row in rows
        if len(row.marks) == len(swept.points)
    ]
    series += [(engine.model, engine.backend, "", list(engine.said)) for engine in engines]
    by_change: dict[tuple[str, str, str, str, str], dict[str, list[tuple[str, str]]]] = {}
    for package, versions in swept.axes.items():
        for point in swept.points:
            at = versions.index(point.asked[package])
            if at + 1 == len(versions):
                continue
            later = names[_key({**point.asked, package: versions[at + 1]})]
            here = names[_key(point.asked)]
            rest = ", ".join(f"{k} {v}" for k, v in point.asked.items() if k != package)
            for model, backend, scenario, states in series:
                if states[here] != states[later] and states[here] and states[later]:
                    change = f"{states[here]} → {states[later]}"
                    key = (model, package, versions[at], versions[at + 1], change)
                    by_change.setdefault(key, {}).setdefault(rest, []).append((backend, scenario))
    for (model, package, before, after, change), by_rest in by_change.items():
        combinations = len(swept.points) // len(swept.axes[package])
        everywhere = len(by_rest) == combinations
        where = [pair for pairs in by_rest.values() for pair in pairs]
        yield Change(
            model,
            package,
            before,
            after,
            change,
            tuple(dict.fromkeys(backend for backend, _ in where)),
            tuple(dict.fromkeys(scenario for _, scenario in where if scenario)),
            "" if everywhere else "; ".join(by_rest),
        )


def _key(versions: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(versions.items()))


def _short(mark: Mark) -> str:
    if mark.verdict.passes:
        return "passes"
    return mark.verdict.value if mark.passed == 0 else f"{mark.verdict.value} in some cases"

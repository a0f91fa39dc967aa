"""The data of a cell's plots as plain numbers; the page or the terminal draws them.

Errors and noise floors are relative (‖x − reference‖ / ‖reference‖ of a row), ratios are multiples
of the noise floor. Numbers keep three digits: a plot shows no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.report.grouping import group_by
from conformance.report.verdict_styles import ORDER, worst
from conformance.spec.records import CellResult, Group, Judged, Site

#: A screen cannot show more columns: neighbours are merged, keeping the worst.
COLUMNS = 160
_GAINS = 120

Number = float | str | None


def short(value: float | None, digits: int = 3) -> Number:
    """Round to significant digits; write nan and infinities as the strings that records use."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    rounded = float(f"{value:.{digits}g}")
    return rounded if math.isfinite(rounded) else value


def ratio(value: float | None) -> Number:
    """Round a ratio, with enough digits to compare it with its limit."""
    return short(value, digits=5)


def stages(identity: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the half-open layer ranges of the pipeline stages, as the engine reported them."""
    bounds = identity.get("stages")
    if not isinstance(bounds, Sequence) or isinstance(bounds, str):
        return ()
    try:
        return tuple((int(start), int(end)) for start, end in bounds)
    except (TypeError, ValueError):
        return ()


def boundaries(group: Group | None) -> tuple[int, ...]:
    """Return the first layer of every stage but the first."""
    return tuple(start for start, _ in stages(group.identity)[1:]) if group else ()


def causes_first(observations: Iterable[Judged]) -> list[Judged]:
    """Sort observations: failing ones in the order they were made, so that causes come before
    effects; then the others, the closest to failing first.
    """

    def key(observation: Judged) -> tuple[int, float]:
        if observation.verdict.fails:
            return -1, 0
        return ORDER[observation.verdict], -magnitude(observation.q_max)

    return sorted(observations, key=key)


@dataclass(frozen=True, slots=True)
class _Point:
    """An observation, its site, and its index among the cell's observations."""

    site: Site
    judged: Judged
    index: int


def series(cell: CellResult) -> list[dict[str, Any]]:
    """Return one plot line and one heat map for each run and prompt, the worst first.

    `layers` holds [layer, observation, verdict] per layer: the observation of the worst step, as
    its index in the cell. `heat` holds a row per layer (or name) with a ratio per token: the
    prompt's tokens, then the generated ones, one per step. `length` is the number of prompt tokens,
    `bin` how many tokens a column merges.
    """
    points = [
        _Point(site, observation, index)
        for index, observation in enumerate(cell.observations)
        if observation.ratios or observation.q_max is not None
        if (site := observation.place) is not None
    ]
    lines = group_by(points, lambda point: (point.site.run, point.site.prompt)).values()
    return [_line(members) for members in sorted(lines, key=lambda line: -_worst(line))]


def _worst(points: Iterable[_Point]) -> float:
    return max(magnitude(point.judged.q_max) for point in points)


def _line(members: list[_Point]) -> dict[str, Any]:
    by_step = group_by(members, lambda point: point.site.step)
    lengths = {
        step: max(len(point.judged.ratios) for point in by_step[step]) for step in sorted(by_step)
    }
    places = group_by(
        members, lambda point: (point.site.layer is None, point.site.layer or 0, point.site.name)
    )
    rows = [places[place] for place in sorted(places)]
    layered = [row for row in rows if row[0].site.layer is not None]
    kinds = {row[0].site.name for row in layered}

    def name(site: Site) -> str | int:
        """Return the layer's number, with the name only if two kinds of observations share it."""
        if site.layer is None:
            return site.name
        return site.layer if len(kinds) == 1 else f"{site.name}.{site.layer}"

    total = sum(lengths.values())
    merge = max(1, math.ceil(total / COLUMNS))
    sizes = [point.judged.q_max for point in members if point.judged.q_max is not None]
    return {
        "run": members[0].site.run,
        "prompt": members[0].site.prompt,
        "worst": ratio(max(sizes, key=magnitude, default=None)),
        "layers": [_worst_step(row) for row in layered],
        "length": next(iter(lengths.values())) if len(lengths) > 1 else total,
        "bin": merge,
        "heat": [
            [name(row[0].site), keep_worst(_along(row, lengths), merge)]
            for row in rows
            if any(point.judged.ratios for point in row)
        ],
    }


def _worst_step(row: Sequence[_Point]) -> list[Any]:
    """Return the step with the largest q_max for the layer; its verdict is the row's worst."""
    top = max(row, key=lambda point: magnitude(point.judged.q_max))
    return [top.site.layer, top.index, worst(point.judged.verdict for point in row).value]


def _along(row: Sequence[_Point], lengths: Mapping[int, int]) -> list[float | None]:
    """Concatenate the ratios of all steps; a step with fewer tokens is padded in front."""
    by_step = {point.site.step: point.judged.ratios for point in row}
    along: list[float | None] = []
    for step, length in lengths.items():
        ratios = by_step.get(step, ())
        along += [None] * (length - len(ratios)) + list(ratios)
    return along


def keep_worst(ratios: Sequence[float | None], size: int) -> list[Number]:
    """Keep the worst of every `size` neighbours."""
    return [
        short(max(ratios[start : start + size], key=magnitude), digits=2)
        for start in range(0, len(ratios), size)
    ]


def magnitude(value: float | None) -> float:
    """Return a sort key: None ranks below any number, nan above."""
    if value is None:
        return -math.inf
    return math.inf if math.isnan(value) else value


def gains(cell: CellResult) -> list[list[Any]]:
    """Return [observation, gain of each token] of every gain, the furthest from 1 first."""
    rows = [
        (index, observation.gain)
        for index, observation in enumerate(cell.observations)
        if observation.gain is not None
    ]
    rows.sort(key=lambda pair: -pair[1].off)
    return [
        [index, [short(value) for value in gain.tokens[:COLUMNS]]] for index, gain in rows[:_GAINS]
    ]

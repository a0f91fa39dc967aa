"""The data of a cell's plots as plain numbers; the page or the terminal draws them.

Errors and noise floors are relative (‖x − reference‖ / ‖reference‖ of a row), ratios are multiples
of the noise floor. Numbers keep three digits: a plot shows no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        return ORDER[observation.verdict], -magnitude(short(observation.q_max))

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
    points: dict[tuple[str, int], list[_Point]] = {}
    for index, observation in enumerate(cell.observations):
        site = observation.place
        if site is not None and (observation.ratios or observation.q_max is not None):
            points.setdefault((site.run, site.prompt), []).append(_Point(site, observation, index))
    lines = [_line(key, members) for key, members in points.items()]
    return sorted(lines, key=lambda line: -magnitude(line["worst"]))


def _line(key: tuple[str, int], members: list[_Point]) -> dict[str, Any]:
    steps = sorted({point.site.step for point in members})
    lengths = {
        step: max(len(point.judged.ratios) for point in members if point.site.step == step)
        for step in steps
    }
    rows: dict[tuple[bool, int, str], list[_Point]] = {}
    for point in members:
        site = point.site
        rows.setdefault((site.layer is None, site.layer or 0, site.name), []).append(point)
    ordered = [rows[place] for place in sorted(rows)]
    total = sum(lengths.values())
    merge = max(1, math.ceil(total / COLUMNS))
    sizes = [_rank(point.judged.q_max) for point in members if point.judged.q_max is not None]
    return {
        "run": key[0],
        "prompt": key[1],
        "worst": ratio(max(sizes, default=None)),
        "layers": [_worst_step(row) for row in ordered if row[0].site.layer is not None],
        "length": lengths[steps[0]] if len(steps) > 1 else total,
        "bin": merge,
        "heat": [
            [_row_name(row[0].site, ordered), keep_worst(_along(row, lengths), merge)]
            for row in ordered
            if any(point.judged.ratios for point in row)
        ],
    }


def _row_name(site: Site, rows: Sequence[Sequence[_Point]]) -> str | int:
    """Return the layer's number, with the name only if two kinds of observations share it."""
    if site.layer is None:
        return site.name
    kinds = {row[0].site.name for row in rows if row[0].site.layer is not None}
    return site.layer if len(kinds) == 1 else f"{site.name}.{site.layer}"


def _worst_step(row: Sequence[_Point]) -> list[Any]:
    """Return the step with the largest q_max for the layer; its verdict is the row's worst."""
    top = max(row, key=lambda point: magnitude(short(point.judged.q_max)))
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
    """Keep the worst of every `size` neighbours; nan ranks above any number, None below."""
    if size == 1:
        return [short(value, digits=2) for value in ratios]
    return [
        short(max(ratios[start : start + size], key=_rank), digits=2)
        for start in range(0, len(ratios), size)
    ]


def _rank(value: float | None) -> float:
    if value is None:
        return -math.inf
    return math.inf if math.isnan(value) else value


def magnitude(value: Number) -> float:
    """Return a sort key: None ranks below any number, nan and infinities above."""
    if value is None:
        return -1.0
    return value if isinstance(value, float) and math.isfinite(value) else math.inf


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

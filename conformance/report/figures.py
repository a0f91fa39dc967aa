"""What a cell's plots show, as plain numbers: drawing is the page's (or the terminal's).

Errors and noise floors are relative (‖x − truth‖ / ‖truth‖ of a row), ratios are
multiples of the noise floor. Numbers keep three digits: a plot shows no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.records import CellResult, Group, Judged, Site
from conformance.report.verdict_styles import ORDER, worst

#: More columns than this no screen can tell apart: neighbours are merged, worst first.
COLUMNS = 160
_GAINS = 120

Number = float | str | None


def short(value: float | None, digits: int = 3) -> Number:
    """So many significant digits; what JSON has no word for as the strings records use."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    rounded = float(f"{value:.{digits}g}")
    return rounded if math.isfinite(rounded) else value


def ratio(value: float | None) -> Number:
    """Precise enough to be told from the limit that it was held against."""
    return short(value, digits=5)


def stages(identity: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """The half-open layer ranges of the pipeline stages, as the engine itself said."""
    bounds = identity.get("stages")
    if not isinstance(bounds, Sequence) or isinstance(bounds, str):
        return ()
    try:
        return tuple((int(start), int(end)) for start, end in bounds)
    except (TypeError, ValueError):
        return ()


def boundaries(group: Group | None) -> tuple[int, ...]:
    """The first layer of every stage but the first one."""
    return tuple(start for start, _ in stages(group.identity)[1:]) if group else ()


def causes_first(observations: Iterable[Judged]) -> list[Judged]:
    """What is off as it was observed, layer by layer, so that what follows stands after its cause;
    then the others, the nearest to being off first.
    """

    def key(observation: Judged) -> tuple[int, float]:
        if observation.verdict.fails:
            return -1, 0
        return ORDER[observation.verdict], -magnitude(short(observation.q_max))

    return sorted(observations, key=key)


@dataclass(frozen=True, slots=True)
class _Point:
    """An observation, where it was made, and its place among the cell's observations."""

    site: Site
    judged: Judged
    index: int


def series(cell: CellResult) -> list[dict[str, Any]]:
    """One plot line and one heat map for each run and prompt of the cell, the worst first.

    `layers` holds [layer, observation, verdict] per layer: the observation is that of the
    worst step, as its index in the cell. `heat` holds a row per layer (or name) with a ratio
    per token: those of the prompt, then those that were generated, a step each. `length` is
    how many belong to the prompt, `bin` how many tokens a column merges.
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
            [_row_name(row[0].site, ordered), merged(_along(row, lengths), merge)]
            for row in ordered
            if any(point.judged.ratios for point in row)
        ],
    }


def _row_name(site: Site, rows: Sequence[Sequence[_Point]]) -> str | int:
    """The layer's number alone, unless two kinds of observations share it."""
    if site.layer is None:
        return site.name
    kinds = {row[0].site.name for row in rows if row[0].site.layer is not None}
    return site.layer if len(kinds) == 1 else f"{site.name}.{site.layer}"


def _worst_step(row: Sequence[_Point]) -> list[Any]:
    """The step with the largest q_max stands for the layer; its verdict is the row's worst."""
    top = max(row, key=lambda point: magnitude(short(point.judged.q_max)))
    return [top.site.layer, top.index, worst(point.judged.verdict for point in row).value]


def _along(row: Sequence[_Point], lengths: Mapping[int, int]) -> list[float | None]:
    """The ratios of all steps along the tokens; a step with fewer has its last ones."""
    by_step = {point.site.step: point.judged.ratios for point in row}
    along: list[float | None] = []
    for step, length in lengths.items():
        ratios = by_step.get(step, ())
        along += [None] * (length - len(ratios)) + list(ratios)
    return along


def merged(ratios: Sequence[float | None], size: int) -> list[Number]:
    """The worst of every `size` neighbours; NaN is worse than any number, None than none."""
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
    """For sorting: nothing is less than any number, what is not finite more than all."""
    if value is None:
        return -1.0
    return value if isinstance(value, float) and math.isfinite(value) else math.inf


def gains(cell: CellResult) -> list[list[Any]]:
    """[observation, gain of each token] of every gain, the furthest from 1 first."""
    rows = [
        (index, observation.gain)
        for index, observation in enumerate(cell.observations)
        if observation.gain is not None
    ]
    rows.sort(key=lambda pair: -pair[1].off)
    return [
        [index, [short(value) for value in gain.tokens[:COLUMNS]]] for index, gain in rows[:_GAINS]
    ]

"""What a cell's plots show, as plain numbers: drawing is the page's (or the terminal's).

Errors and noise floors are relative (‖x − truth‖ / ‖truth‖ of a row), ratios are
multiples of the noise floor. Numbers keep three digits: a plot shows no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.records import CellResult, Gain, Group, Judged, Site
from conformance.report.looks import worst

#: More columns than this no screen can tell apart: neighbours are merged, worst first.
COLUMNS = 160
_GAINS = 120

Number = float | str | None


def short(value: float | None) -> Number:
    """Three significant digits; what JSON has no word for as the strings records use."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    rounded = float(f"{value:.3g}")
    return rounded if math.isfinite(rounded) else value


def stages(identity: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """The half-open layer ranges of the pipeline stages, as the engine itself said."""
    found = identity.get("stages")
    if not isinstance(found, Sequence) or isinstance(found, str):
        return ()
    try:
        return tuple((int(start), int(end)) for start, end in found)
    except (TypeError, ValueError):
        return ()


def boundaries(group: Group | None) -> tuple[int, ...]:
    """The first layer of every stage but the first one."""
    return tuple(start for start, _ in stages(group.identity)[1:]) if group else ()


def place(judged: Judged) -> Site | None:
    """The observation's place, None where its name is none of ours."""
    try:
        return Site.parse(judged.site)
    except ValueError:
        return None


def series(cell: CellResult) -> list[dict[str, Any]]:
    """One plot line and one heat map for each run and prompt of the cell, the worst first.

    `layers` holds [layer, error, floor, q_med, q_max, verdict] per layer, of the worst step.
    `heat` holds a row per layer (or name) with a ratio per token: those of the prompt, then
    those that were generated, a step each. `prompt` is how many belong to the prompt, `bin`
    how many tokens a column merges.
    """
    found: dict[tuple[str, int], list[tuple[Site, Judged]]] = {}
    for judged in cell.observations:
        site = place(judged)
        if site is not None and (judged.ratios or judged.q_max is not None):
            found.setdefault((site.run, site.prompt), []).append((site, judged))
    lines = [_line(key, members) for key, members in found.items()]
    return sorted(lines, key=lambda line: -magnitude(line["worst"]))


def _line(key: tuple[str, int], members: list[tuple[Site, Judged]]) -> dict[str, Any]:
    steps = sorted({site.step for site, _ in members})
    lengths = {
        step: max(len(judged.ratios) for site, judged in members if site.step == step)
        for step in steps
    }
    rows: dict[tuple[bool, int, str], list[tuple[Site, Judged]]] = {}
    for site, judged in members:
        rows.setdefault((site.layer is None, site.layer or 0, site.name), []).append((site, judged))
    ordered = [rows[place] for place in sorted(rows)]
    total = sum(lengths.values())
    merge = max(1, math.ceil(total / COLUMNS))
    largest = max((_rank(j.q_max) for _, j in members if j.q_max is not None), default=None)
    return {
        "run": key[0],
        "prompt": key[1],
        "worst": short(largest),
        "layers": [_worst_step(row) for row in ordered if row[0][0].layer is not None],
        "length": lengths[steps[0]] if len(steps) > 1 else total,
        "bin": merge,
        "heat": [
            [_row_name(row[0][0], ordered), merged(_along(row, lengths), merge)]
            for row in ordered
            if any(judged.ratios for _, judged in row)
        ],
    }


def _row_name(site: Site, rows: Sequence[Sequence[tuple[Site, Judged]]]) -> str | int:
    """The layer's number alone, unless two kinds of observations share it."""
    if site.layer is None:
        return site.name
    kinds = {other.name for row in rows if (other := row[0][0]).layer is not None}
    return site.layer if len(kinds) == 1 else f"{site.name}.{site.layer}"


def _worst_step(row: Sequence[tuple[Site, Judged]]) -> list[Any]:
    """The step with the largest q_max stands for the layer; its verdict is the row's worst."""
    site, judged = max(row, key=lambda pair: magnitude(short(pair[1].q_max)))
    verdict = worst(other.verdict for _, other in row)
    figures = map(short, (judged.error, judged.floor, judged.q_med, judged.q_max))
    return [site.layer, *figures, verdict.value]


def _along(row: Sequence[tuple[Site, Judged]], lengths: Mapping[int, int]) -> list[float | None]:
    """The ratios of all steps along the tokens; a step with fewer has its last ones."""
    by_step = {site.step: judged.ratios for site, judged in row}
    along: list[float | None] = []
    for step, length in lengths.items():
        ratios = by_step.get(step, ())
        along += [None] * (length - len(ratios)) + list(ratios)
    return along


def merged(ratios: Sequence[float | None], size: int) -> list[Number]:
    """The worst of every `size` neighbours; NaN is worse than any number, None than none."""
    return [
        short(max(ratios[start : start + size], key=_rank)) for start in range(0, len(ratios), size)
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


def gains(cell: CellResult) -> list[dict[str, Any]]:
    """Every gain of the cell's observations, worst first, its tokens merged to columns."""
    found = [
        {
            "site": judged.site,
            "g": short(gain.g),
            "h": short(gain.h),
            "sigma": short(gain.sigma),
            "tokens": [short(value) for value in gain.tokens[:COLUMNS]],
            "verdict": judged.verdict.value,
        }
        for judged in cell.observations
        if (gain := judged.gain) is not None
    ]
    order = {j.site: _off(j.gain) for j in cell.observations if j.gain is not None}
    return sorted(found, key=lambda entry: -order[str(entry["site"])])[:_GAINS]


def _off(gain: Gain) -> float:
    return math.inf if math.isnan(gain.g) else abs(gain.g - 1)

"""What a cell's plots show, as plain numbers: drawing is the page's (or the terminal's).

Errors and noise floors are relative (‖x − truth‖ / ‖truth‖ of a row), ratios are
multiples of the noise floor. Numbers keep three digits: a plot shows no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.records import CellResult, Gain, Group, Judged, Site

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
    """One plot line and one heat map for each run, prompt and step of the cell.

    `layers` holds [layer, error, floor, q_med, q_max, verdict] per layer, `heat` one row
    of token ratios per observation with values per token, `bin` how many tokens a column
    of it merges. The line with the worst ratio comes first.
    """
    found: dict[tuple[str, str, int, int], list[tuple[Site, Judged]]] = {}
    for judged in cell.observations:
        site = place(judged)
        if site is not None and (judged.ratios or judged.q_max is not None):
            name = site.name if site.layer is not None else ""
            found.setdefault((name, site.run, site.prompt, site.step), []).append((site, judged))
    lines = [_line(key, members) for key, members in found.items()]
    return sorted(lines, key=lambda line: -magnitude(line["worst"]))


def _line(key: tuple[str, str, int, int], members: list[tuple[Site, Judged]]) -> dict[str, Any]:
    name, run, prompt, step = key
    members.sort(key=lambda pair: (pair[0].layer is None, pair[0].layer or 0, pair[0].name))
    width = max((len(judged.ratios) for _, judged in members), default=0)
    merge = max(1, math.ceil(width / COLUMNS))
    return {
        "name": name,
        "run": run,
        "prompt": prompt,
        "step": step,
        "worst": short(max((j.q_max for _, j in members if j.q_max is not None), default=None)),
        "layers": [
            [site.layer, *map(short, (j.error, j.floor, j.q_med, j.q_max)), j.verdict.value]
            for site, j in members
            if site.layer is not None
        ],
        "bin": merge,
        "heat": [
            [site.name if site.layer is None else site.layer, merged(judged.ratios, merge)]
            for site, judged in members
            if len(judged.ratios) > 1 or (judged.ratios and site.layer is not None)
        ],
    }


def merged(ratios: Sequence[float], size: int) -> list[Number]:
    """The worst of every `size` neighbours; NaN is worse than any number."""
    return [
        short(max(ratios[start : start + size], key=_rank)) for start in range(0, len(ratios), size)
    ]


def _rank(value: float) -> float:
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

"""Measure how much room a passing cell has before it would fail (pure).

The headroom of a number is 1 − value/threshold: 1 without any error, 0 at the threshold. The ratio
itself says little, because correct computations always lie near 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.records import CellResult, Judged, Limits, Thresholds, Verdict, record


@record()
class Headroom:
    """The smallest headroom of a cell, its site, and the number it belongs to."""

    left: float
    site: str
    of: str


def headroom(cell: CellResult, thresholds: Thresholds, *, exact: bool) -> Headroom | None:
    """Return the headroom; None if no number was judged. `exact` includes bitwise equality."""
    rooms = [
        Headroom(max(0.0, room), judged.site, name)
        for judged in cell.observations
        if exact or judged.verdict is not Verdict.EXACT
        for name, room in _rooms(judged, thresholds.of(cell.precision))
    ]
    return min(rooms, key=lambda headroom: headroom.left, default=None)


def _rooms(judged: Judged, limits: Limits) -> Iterator[tuple[str, float]]:
    if judged.q_med is not None and len(judged.ratios) > 1:
        yield "median ratio", 1 - judged.q_med / limits.far_med
    if judged.q_max is not None:
        yield "largest ratio", 1 - judged.q_max / limits.far_max
    if judged.gain is None:
        return
    room = max(limits.gain_tolerance, limits.gain_sigmas * judged.gain.sigma)
    # Above this limit the noise is too large to judge the gain.
    if room <= limits.gain_room:
        yield "gain", 1 - abs(judged.gain.g - 1) / room

"""How much room a passing cell has left before it would fail (pure).

The headroom of a number is 1 − value/threshold: 1 at no error at all, 0 at the threshold.
The ratio itself says little: honest computations lie near 1 whatever they do.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.records import CellResult, Judged, Limits, Thresholds, Verdict, record


@record()
class Headroom:
    """The smallest one of a cell, where it is, and of which number."""

    left: float
    site: str
    of: str


def headroom(cell: CellResult, thresholds: Thresholds, *, exact: bool) -> Headroom | None:
    """None where no number was judged. With `exact`, bitwise equal observations count too."""
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
    # Beyond that the noise is too large for the gain to be judged at all.
    if room <= limits.gain_room:
        yield "gain", 1 - abs(judged.gain.g - 1) / room

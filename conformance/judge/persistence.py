"""Errors that stay in the residual stream although the logits need not show them."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.records import Judged, Site

#: The upper limit of k_max: a larger ratio never passes.
_NOISE = 3.0


def stays_off(reads: Sequence[Judged]) -> bool:
    """Return whether the stream is off from some layer to the last, but never at the last token.

    The logits come from the last token. It sees the others only through attention, which can hide
    that one of them is wrong.
    """
    streams: dict[tuple[int, int], list[tuple[int, Judged]]] = {}
    for observation in reads:
        site = Site.parse(observation.site)
        if site.name == "stream" and site.layer is not None:
            streams.setdefault((site.prompt, site.step), []).append((site.layer, observation))
    stays = False
    for ordered in streams.values():
        ordered.sort(key=lambda pair: pair[0])
        off = [not observation.verdict.passes for _, observation in ordered]
        if not any(off):
            continue
        first = off.index(True)
        local = all(_spares_the_last_token(observation) for _, observation in ordered[first:])
        if not (all(off[first:]) and len(off) - first > 1 and local):
            return False
        stays = True
    return stays


def _spares_the_last_token(observation: Judged) -> bool:
    return bool(observation.ratios) and observation.ratios[-1] <= _NOISE < max(observation.ratios)

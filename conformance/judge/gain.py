"""Did the write land? The gain of an intervention, from clean and edited runs.

With Δr = o′ − o of the truth and Δc = c′ − c of the candidate on the bulk dimensions:
g = ⟨Δc, Δr⟩ / ⟨Δr, Δr⟩, off-axis h = ‖Δc − gΔr‖ / ‖Δr‖. What is common to both runs of
one side cancels, so a write far below the noise of either run is still seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from conformance.judge import metrics
from conformance.judge.floor import Floor
from conformance.records import Gain, Thresholds

#: A row of the truth that changes by less than this share of itself was not written to:
#: float32 itself is no more certain.
UNTOUCHED = 1e-5


class Landing(StrEnum):
    """What one observation says about the write."""

    LANDED = "landed"
    DROPPED = "dropped"
    PARTIAL = "partial"
    MISSCALED = "misscaled"
    MISDIRECTED = "misdirected"
    POWERLESS = "powerless"
    UNTOUCHED = "untouched"


@dataclass(frozen=True, slots=True)
class Effect:
    """The gain at one site and what it says.

    `leak` is the largest change of a row that must not change, in multiples of what
    noise explains; `leaking` are those rows. `moved` says whether the candidate changed
    at all where the truth does. `without` and `reached` are the tokens with gain 0 and 1.
    """

    gain: Gain | None
    landing: Landing
    leak: float
    leaking: tuple[int, ...]
    moved: bool
    without: tuple[int, ...] = ()
    reached: tuple[int, ...] = ()


def effect(
    clean: Tensor, edited: Tensor, honest: tuple[Floor, Floor], thresholds: Thresholds
) -> Effect:
    """The effect of the write at one site.

    `clean` and `edited` are the candidate's rows [T, D], `honest` the floors of the
    same two observations.
    """
    before, after = honest
    mask = before.bulk
    truth = (after.truth - before.truth) * mask
    members = (after.members - before.members) * mask
    change = (edited - clean) * mask
    touched = torch.linalg.vector_norm(truth, dim=-1) > UNTOUCHED * before.scale
    leak = _leak(change, members, before.noise, ~touched)
    leaking = tuple(torch.nonzero(leak > thresholds.k_max).flatten().tolist())
    worst = float(leak.max())
    if not bool(touched.any()):
        return Effect(None, Landing.UNTOUCHED, worst, leaking, moved=False)
    width = mask[touched].sum(dim=-1)
    site = _project(change[touched].reshape(1, -1), truth[touched].reshape(1, -1))
    honest_site = _project(members[:, touched].flatten(1), truth[touched].reshape(1, -1))
    sigma, off_axis = _noise(*honest_site, width.sum().reshape(1))
    tokens, _ = _project(change[touched], truth[touched])
    token_sigma, _ = _noise(*_project(members[:, touched], truth[touched]), width)
    token_sigma = token_sigma.clamp_min(metrics.median(token_sigma))
    every = torch.full((truth.shape[0],), torch.nan, dtype=truth.dtype)
    every[touched] = tokens
    gain = Gain(float(site[0]), float(site[1]), float(sigma), tuple(every.tolist()))
    index = torch.nonzero(touched).flatten()
    sure = token_sigma <= thresholds.power
    room = _tolerance(token_sigma, thresholds)
    without = tuple(index[sure & (tokens.abs() <= room)].tolist())
    reached = tuple(index[sure & ((tokens - 1).abs() <= room)].tolist())
    landing = _landing(gain, float(off_axis), bool(without and reached), thresholds)
    moved = bool((change[touched] != 0).any())
    return Effect(gain, landing, worst, leaking, moved, without, reached)


def tolerance(sigma: float, thresholds: Thresholds) -> float:
    """How far from 0 or 1 a gain may be and still count as 0 or 1."""
    return max(thresholds.gain_tolerance, thresholds.gain_sigmas * sigma)


def _tolerance(sigma: Tensor, thresholds: Thresholds) -> Tensor:
    return (thresholds.gain_sigmas * sigma).clamp_min(thresholds.gain_tolerance)


def _project(change: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """g and h of each row. Rows of the truth are not zero."""
    size = torch.linalg.vector_norm(truth, dim=-1)
    unit = truth / size.unsqueeze(-1)
    scaled = change / size.unsqueeze(-1)
    g = (scaled * unit).sum(dim=-1)
    return g, torch.linalg.vector_norm(scaled - g.unsqueeze(-1) * unit, dim=-1)


def _noise(g: Tensor, h: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """σ_g and the ensemble's h, over the members (first dimension).

    σ_g is at least h/√width, what noise of that size spread evenly over the dimensions
    gives: the gains of a few members can agree by luck.
    """
    off_axis = h.square().mean(dim=0).sqrt()
    sigma = (g - 1).square().mean(dim=0).sqrt()
    return torch.maximum(sigma, off_axis / width.to(h.dtype).sqrt()), off_axis


def _leak(change: Tensor, members: Tensor, noise: Tensor, untouched: Tensor) -> Tensor:
    """‖Δc‖ of each row that must not change, in multiples of what two runs may differ by."""
    honest = torch.linalg.vector_norm(members, dim=-1).amax(dim=0)
    allowed = torch.maximum(honest, math.sqrt(2) * noise)
    size = torch.linalg.vector_norm(change, dim=-1) * untouched
    return metrics.ratio(size, allowed)


def _landing(gain: Gain, off_axis: float, split: bool, thresholds: Thresholds) -> Landing:
    room = tolerance(gain.sigma, thresholds)
    if not gain.sigma <= thresholds.power:
        return Landing.POWERLESS
    if split:
        return Landing.PARTIAL
    if abs(gain.g) <= room:
        return Landing.DROPPED
    if gain.h > math.hypot(thresholds.off_axis, thresholds.k_max * off_axis):
        return Landing.MISDIRECTED
    return Landing.MISSCALED if abs(gain.g - 1) > room else Landing.LANDED

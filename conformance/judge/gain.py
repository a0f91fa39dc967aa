"""Did the write land? The gain of an intervention, from clean and edited runs.

With Δr = o′ − o of the truth and Δc = c′ − c of the candidate on the bulk dimensions:
g = ⟨Δc, Δr⟩ / ⟨Δr, Δr⟩, off-axis h = ‖Δc − gΔr‖ / ‖Δr‖. What is common to both runs of
one side cancels, so a write far below the noise of either run is still seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """How one observation changed between the clean and the edited run, on both sides.

    `g` and `h` are the candidate's, `own` the scatter of the ensemble's gains around 1,
    `off_axis` the ensemble's h and `even` what noise of that size gives when spread
    evenly over the dimensions; the `token_` tensors hold the same for each touched row,
    whose indices are `touched`. `leak` is the largest change of a row that must not
    change, in multiples of what noise explains; `leaking` are those rows. `moved` says
    whether the candidate changed at all where the truth does.
    """

    rows: int
    leak: float
    leaking: tuple[int, ...]
    moved: bool = False
    g: float = 0.0
    h: float = 0.0
    own: float = 0.0
    off_axis: float = 0.0
    even: float = 0.0
    touched: tuple[int, ...] = ()
    token_g: Tensor = field(default_factory=lambda: torch.zeros(0))
    token_own: Tensor = field(default_factory=lambda: torch.zeros(0))
    token_even: Tensor = field(default_factory=lambda: torch.zeros(0))


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change says about the write: `without` and `reached` are the tokens with
    gain 0 and gain 1.
    """

    gain: Gain | None
    landing: Landing
    leak: float
    leaking: tuple[int, ...]
    moved: bool
    without: tuple[int, ...] = ()
    reached: tuple[int, ...] = ()


def change(
    clean: Tensor, edited: Tensor, honest: tuple[Floor, Floor], thresholds: Thresholds
) -> Change:
    """The change at one site.

    `clean` and `edited` are the candidate's rows [T, D], `honest` the floors of the
    same two observations.
    """
    before, after = honest
    mask = before.bulk
    truth = (after.truth - before.truth) * mask
    members = (after.members - before.members) * mask
    mine = before.view(edited - clean) * mask
    touched = torch.linalg.vector_norm(truth, dim=-1) > UNTOUCHED * before.scale
    leak = _leak(mine, members, before.noise, ~touched)
    leaking = tuple(torch.nonzero(leak > thresholds.margin).flatten().tolist())
    rows, worst = truth.shape[0], float(leak.max())
    if not bool(touched.any()):
        return Change(rows, worst, leaking)
    mine, members, truth = mine[touched], members[:, touched], truth[touched]
    width = mask[touched].sum(dim=-1)
    site = _project(mine.reshape(1, -1), truth.reshape(1, -1))
    noise = _noise(*_project(members.flatten(1), truth.reshape(1, -1)), width.sum())
    token_noise = _noise(*_project(members, truth), width)
    return Change(
        rows,
        worst,
        leaking,
        moved=bool((mine != 0).any()),
        g=float(site[0]),
        h=float(site[1]),
        own=float(noise[0]),
        off_axis=float(noise[1]),
        even=float(noise[2]),
        touched=tuple(torch.nonzero(touched).flatten().tolist()),
        token_g=_project(mine, truth)[0],
        token_own=token_noise[0],
        token_even=token_noise[2],
    )


def unevenness(changes: Sequence[Change]) -> float:
    """How much more than evenly spread noise the gains scatter: over all changes of one kind.

    The gains of four members can agree by luck at one site; at all sites of a cell they
    do not. On tiny llama and gpt2 models it is 1.7 to 2.3.
    """
    ratios = [change.own / change.even for change in changes if change.even > 0]
    if not ratios:
        return 1.0
    return max(1.0, math.sqrt(math.fsum(ratio**2 for ratio in ratios) / len(ratios)))


def effect(change: Change, uneven: float, thresholds: Thresholds) -> Effect:
    """What the change says, given how uneven the noise is (`unevenness`)."""
    if not change.touched:
        return Effect(None, Landing.UNTOUCHED, change.leak, change.leaking, moved=False)
    every = [math.nan] * change.rows
    for row, g in zip(change.touched, change.token_g.tolist(), strict=True):
        every[row] = g
    sigma = max(change.own, uneven * change.even)
    gain = Gain(change.g, change.h, sigma, tuple(every))
    sigmas = torch.maximum(change.token_own, uneven * change.token_even)
    room = (thresholds.gain_sigmas * sigmas).clamp_min(thresholds.gain_tolerance)
    sure, index = sigmas <= thresholds.power, torch.tensor(change.touched)
    without = tuple(index[sure & (change.token_g.abs() <= room)].tolist())
    reached = tuple(index[sure & ((change.token_g - 1).abs() <= room)].tolist())
    landing = _landing(gain, change.off_axis, bool(without and reached), thresholds)
    return Effect(gain, landing, change.leak, change.leaking, change.moved, without, reached)


def tolerance(sigma: float, thresholds: Thresholds) -> float:
    """How far from 0 or 1 a gain may be and still count as 0 or 1."""
    return max(thresholds.gain_tolerance, thresholds.gain_sigmas * sigma)


def _project(change: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """g and h of each row. Rows of the truth are not zero."""
    size = torch.linalg.vector_norm(truth, dim=-1)
    unit = truth / size.unsqueeze(-1)
    scaled = change / size.unsqueeze(-1)
    g = (scaled * unit).sum(dim=-1)
    return g, torch.linalg.vector_norm(scaled - g.unsqueeze(-1) * unit, dim=-1)


def _noise(g: Tensor, h: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scatter of g, the size of h, and h spread evenly, over the members (first dimension)."""
    off_axis = h.square().mean(dim=0).sqrt()
    return (g - 1).square().mean(dim=0).sqrt(), off_axis, off_axis / width.to(h.dtype).sqrt()


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

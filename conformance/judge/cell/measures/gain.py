"""The gain of an intervention, from clean and edited runs: whether the write took effect.

With Δr = o′ − o of the reference and Δc = c′ − c of the candidate on the bulk dimensions: g = ⟨Δc,
Δr⟩ / ⟨Δr, Δr⟩, off-axis h = ‖Δc − gΔr‖ / ‖Δr‖. What both runs of one side share cancels, so a write
far below the noise of either run is still detected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conformance.judge.cell.measures.floor import Floor
from conformance.spec.records import Gain, Limits

Array = npt.NDArray[np.float64]

#: A row of the reference whose relative change is smaller was not written to: float32 is no more
#: precise.
UNTOUCHED = 1e-5


class Landing(StrEnum):
    """The outcome of the write at one observation."""

    LANDED = "landed"
    DROPPED = "dropped"
    PARTIAL = "partial"
    MISSCALED = "misscaled"
    MISDIRECTED = "misdirected"
    POWERLESS = "powerless"
    UNTOUCHED = "untouched"


@dataclass(frozen=True, slots=True, eq=False)
class ObservedChange:
    """How one observation changed between the clean and the edited run, on both sides.

    `g` and `h` are the candidate's. `sigma` is the noise of the gain (see `_noise`) and `off_axis`
    the h of the baseline runs. The `token_` arrays hold g and sigma of each touched row, whose
    indices are `touched`. `leak` is the largest change of a row that must not change, in multiples
    of the noise; `leaking` are those rows. `moved` says whether the candidate changed at all where
    the reference does.
    """

    rows: int
    leak: float
    leaking: tuple[int, ...]
    moved: bool = False
    g: float = 0.0
    h: float = 0.0
    sigma: float = 0.0
    off_axis: float = 0.0
    touched: tuple[int, ...] = ()
    token_g: Array = field(default_factory=lambda: np.zeros(0))
    token_sigma: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class Effect:
    """The outcome of a change; `without` and `reached` are the tokens with gain 0 and gain 1."""

    gain: Gain | None
    landing: Landing
    leak: float
    leaking: tuple[int, ...]
    moved: bool
    without: tuple[int, ...] = ()
    reached: tuple[int, ...] = ()

    @property
    def failed(self) -> bool:
        """Return whether the write went wrong, as far as this observation shows."""
        fine = {Landing.LANDED, Landing.POWERLESS, Landing.UNTOUCHED}
        return bool(self.leaking) or self.landing not in fine


@dataclass(frozen=True, slots=True, eq=False)
class RunPair:
    """The candidate's rows [T, D] of a clean and an edited run, and the noise floors of both.

    `still` bool [T] are the rows that must not change by one bit; None means none. `repeats` says
    whether the engine is bitwise reproducible: if not, its two runs differ by rounding before any
    write, and that does not cancel.

    Where routers tie, `astray` bool [T] are the rows of the clean run that may come from another
    expert; None where none tie. They have no gain, nor have a few rows that change in another
    direction while most do not.
    """

    clean: Tensor
    edited: Tensor
    before: Floor
    after: Floor
    still: Tensor | None = None
    repeats: bool = True
    astray: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Scalar products of each row: T, R and C are the changes of reference, runs and candidate.

    [T] or, for the baseline runs, [M, T]. `apart` is how far two runs of the candidate differ by
    rounding alone, beyond what the baseline runs show: √2·n_t, as each is n_t from the reference.
    """

    tt: Array
    ct: Array
    cc: Array
    rt: Array
    rr: Array
    width: Array
    scale: Array
    noise: Array
    apart: Array

    def at(self, rows: slice | npt.NDArray[np.bool_]) -> _Sums:
        return _Sums(*(getattr(self, each.name)[..., rows] for each in fields(self)))


def changes(pairs: Sequence[RunPair], limits: Limits) -> list[ObservedChange]:
    """Compute the changes at many sites of one width, on all their rows at once."""
    mask = torch.cat([pair.before.bulk for pair in pairs])
    reference = torch.cat([pair.after.reference - pair.before.reference for pair in pairs]) * mask
    runs = torch.cat([pair.after.baseline - pair.before.baseline for pair in pairs], dim=1) * mask
    candidate = torch.cat([pair.before.view(pair.edited - pair.clean) for pair in pairs]) * mask
    sums = _Sums(
        tt=torch.linalg.vecdot(reference, reference).numpy(),
        ct=torch.linalg.vecdot(candidate, reference).numpy(),
        cc=torch.linalg.vecdot(candidate, candidate).numpy(),
        rt=torch.linalg.vecdot(runs, reference).numpy(),
        rr=torch.linalg.vecdot(runs, runs).numpy(),
        width=mask.sum(dim=-1).numpy(),
        scale=torch.cat([pair.before.scale for pair in pairs]).numpy(),
        noise=torch.cat([pair.before.noise for pair in pairs]).numpy(),
        apart=torch.cat([math.sqrt(2) * p.before.noise * (not p.repeats) for p in pairs]).numpy(),
    )
    computed, end = [], 0
    for pair in pairs:
        rows = slice(end, end := end + len(pair.clean))
        computed.append(_change(sums.at(rows), pair, limits))
    return computed


def _change(sums: _Sums, pair: RunPair, limits: Limits) -> ObservedChange:
    """Compute the change of one pair from the sums of its rows."""
    exact = np.zeros(len(pair.clean), bool) if pair.still is None else pair.still.numpy()
    touched = np.sqrt(sums.tt) > UNTOUCHED * sums.scale
    leak = np.where(touched, 0.0, _leak(sums))
    leaking = tuple(np.nonzero((leak > limits.leak) | (exact & (sums.cc > 0)))[0].tolist())
    rows, worst = len(touched), float(leak.max())
    if pair.astray is not None:
        touched &= ~pair.astray.numpy()
        touched[touched] = ~_find_tipped(sums.at(touched), limits)
    if not touched.any():
        return ObservedChange(rows, worst, leaking)
    sums = sums.at(touched)
    reference_squared = sums.tt.sum()
    g, h = _project(sums.ct.sum(), sums.cc.sum(), reference_squared)
    runs = _project(sums.rt.sum(axis=-1), sums.rr.sum(axis=-1), reference_squared)
    apart = sums.apart * sums.apart
    sigma, off_axis = _noise(*runs, sums.width.sum(), apart.sum() / reference_squared)
    token_runs = _project(sums.rt, sums.rr, sums.tt)
    return ObservedChange(
        rows,
        worst,
        leaking,
        moved=bool((sums.cc > 0).any()),
        g=float(g),
        h=float(h),
        sigma=float(sigma),
        off_axis=float(off_axis),
        touched=tuple(np.nonzero(touched)[0].tolist()),
        token_g=sums.ct / sums.tt,
        token_sigma=_noise(*token_runs, sums.width, apart / sums.tt)[0],
    )


def effect(change: ObservedChange, limits: Limits) -> Effect:
    """Classify a change."""
    if not change.touched:
        return Effect(None, Landing.UNTOUCHED, change.leak, change.leaking, moved=False)
    gains = [math.nan] * change.rows
    for row, g in zip(change.touched, change.token_g.tolist(), strict=True):
        gains[row] = g
    gain = Gain(change.g, change.h, change.sigma, tuple(gains))
    room = np.maximum(limits.gain_sigmas * change.token_sigma, limits.gain_tolerance)
    certain, index = room <= limits.gain_room, np.array(change.touched)
    without = tuple(index[certain & (np.abs(change.token_g) <= room)].tolist())
    reached = tuple(index[certain & (np.abs(change.token_g - 1) <= room)].tolist())
    landing = _landing(gain, change.off_axis, bool(without and reached), limits)
    return Effect(gain, landing, change.leak, change.leaking, change.moved, without, reached)


def _project(along: Array, size: Array, reference: Array) -> tuple[Array, Array]:
    """Return g and h from ⟨Δ, Δr⟩, ⟨Δ, Δ⟩ and ⟨Δr, Δr⟩, which is not zero."""
    g = along / reference
    return g, np.sqrt(np.maximum(size / reference - g * g, 0.0))


def _noise(g: Array, h: Array, width: Array, apart: Array) -> tuple[Array, Array]:
    """Return the noise of the gain and of h from the baseline runs (first dimension).

    The gains of a few runs can agree by luck, so their scatter around 1 is at least what their h
    would give if it were spread evenly over the dimensions. `apart` is the square of what the
    candidate's h has in addition.
    """
    off_axis = np.sqrt((h * h).mean(axis=0) + apart)
    scatter = np.sqrt(((g - 1) ** 2).mean(axis=0))
    return np.maximum(scatter, off_axis / np.sqrt(width)), off_axis


def _find_tipped(sums: _Sums, limits: Limits) -> npt.NDArray[np.bool_]:
    """Return the rows whose change has another direction than the reference's, as after another
    expert; none if they are half of the rows or more.
    """
    _, h = _project(sums.ct, sums.cc, sums.tt)
    runs = _project(sums.rt, sums.rr, sums.tt)
    _, off_axis = _noise(*runs, sums.width, sums.apart * sums.apart / sums.tt)
    tipped: npt.NDArray[np.bool_] = h > np.hypot(limits.off_axis, limits.far_max * off_axis)
    return tipped if 2 * tipped.sum() < len(tipped) else np.zeros_like(tipped)


def _leak(sums: _Sums) -> Array:
    """Return ‖Δc‖ of each row, over the distance two unedited runs may have."""
    allowed = np.maximum(np.sqrt(sums.rr.max(axis=0)), math.sqrt(2) * sums.noise)
    size = np.sqrt(sums.cc)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(size > 0, size / allowed, 0.0)


def _landing(gain: Gain, off_axis: float, split: bool, limits: Limits) -> Landing:
    room = max(limits.gain_tolerance, limits.gain_sigmas * gain.sigma)
    if not room <= limits.gain_room:
        return Landing.POWERLESS
    if split:
        return Landing.PARTIAL
    # Checked first: a write in a wrong direction can also have a gain of 0.
    if gain.h > math.hypot(limits.off_axis, limits.far_max * off_axis):
        return Landing.MISDIRECTED
    if abs(gain.g) <= room:
        return Landing.DROPPED
    return Landing.MISSCALED if abs(gain.g - 1) > room else Landing.LANDED

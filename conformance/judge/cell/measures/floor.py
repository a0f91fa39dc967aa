"""The noise floor: how far baseline runs in one precision are from the float32 reference.

E_t is the baseline runs' root mean square error at token t, n_t = √(E_t² + (u₀·scale)²), and ρ_t =
the candidate's error at t over n_t. Q_med and Q_max are the median and the maximum of ρ over the
tokens. All sizes are absolute, so a reference of zeros needs no division.

Logits are compared after subtracting each row's mean, and the means separately: on SmolLM2-135M 88
% of a baseline run's error in a row of logits is one common shift. It changes no probability and,
being a single number, can be eight times smaller in one run than in the next; the remainder agrees
to a few per cent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics
from conformance.spec.records import Limits, Precision

#: A row shorter than this, relative to the clean run's, is the remainder of a subtraction, where
#: one rounding of the operands is as large: `x - x` may be 1e-8.
CANCELLED = 2.0**-10


@dataclass(frozen=True, slots=True, eq=False)
class Floor:
    """The noise floor of one observation. Tensors are float64.

    reference [T, D]; baseline [M, T, D]; bulk bool [T, D]; scale, noise [T]. `scale` is a row's
    length, or the clean run's if hardly anything is left of it (see `CANCELLED`). `ulps` is the
    baseline runs' error on each massive element in ulps, at least one; None without such elements.
    `massive_noise` [T] is their error on all massive elements of a row together. If rows are
    compared without their means, `shift` is the reference's mean of each row and `shift_noise` the
    baseline error of it. `zero` marks rows that must be exactly zero. `mixture`: a token's row may
    come from another expert, since in bf16 routers have near-ties.
    """

    reference: Tensor
    baseline: Tensor
    bulk: Tensor
    scale: Tensor
    noise: Tensor
    ulps: Tensor | None
    zero: Tensor
    shift: Tensor | None = None
    shift_noise: Tensor | None = None
    precision: Precision = Precision.BF16
    mixture: bool = False
    massive_noise: Tensor | None = None

    @property
    def routers_tie(self) -> bool:
        """Return whether a token's row may come from another expert by rounding."""
        return self.mixture and self.precision is Precision.BF16

    def view(self, rows: Tensor) -> Tensor:
        """Return rows as they are compared: without their means if those are judged separately."""
        return rows if self.shift is None else rows - rows.mean(dim=-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one candidate observation is from the reference, in multiples of the noise floor.

    `error` and `floor` are relative (median over the tokens). `smallest` is the smallest relative
    error on all tokens that would have been found, `smallest_local` on any one of them. `largest`
    is the relative error of whatever is furthest off: a row, a massive dimension, or a row's common
    shift. `massive` is the worst massive dimension, or all of a row's together, as a share of what
    is allowed; `massive_near` is the latter as a share of what a match allows; `shift` is the worst
    common shift. `zero` is False if a row that must be zero is not. Beyond `limit_med` and
    `limit_max` it is wrong.
    """

    q_med: float
    q_max: float
    spread: float
    ratios: tuple[float, ...]
    error: float
    floor: float
    smallest: float | None
    smallest_local: float | None
    largest: float
    massive: float
    massive_near: float
    massive_ulps: float
    shift: float
    zero: bool
    limit_med: float
    limit_max: float

    @property
    def bounded(self) -> bool:
        """Return whether everything that has only an upper bound is within it."""
        return self.massive <= 1.0 and self.shift <= 1.0 and self.zero


def floors(
    references: Sequence[Tensor],
    runs: Tensor,
    fallbacks: Sequence[Tensor | None],
    operands: Sequence[Tensor | None],
    *,
    centred: bool = False,
    precision: Precision = Precision.BF16,
    mixture: bool = False,
    terms: int = 1,
) -> list[Floor]:
    """Compute the noise floors of many observations of one width, on all their rows at once.

    `runs` [M, rows of all of them, D] are the baseline runs. `fallbacks` [T] are the scales of rows
    that are nearly zero: the clean run's norm, massive dimensions included. `operands` [T] are the
    lengths of the operands whose difference an exactly zero row is; 0 if such a row must be zero,
    None if all must. `centred` compares the rows without their means, and the means separately.
    `terms` is how many products the model's sums have: its width.
    """
    reference = torch.cat(list(references))
    empty = ~reference.any(dim=-1) & ~runs.any(dim=-1).any(dim=0)
    shift = reference.mean(dim=-1) if centred else None
    shift_noise = None
    if shift is not None:
        shift_noise = (runs.mean(dim=-1) - shift).square().mean(dim=0).sqrt()
        reference = reference - shift.unsqueeze(-1)
        runs = runs - runs.mean(dim=-1, keepdim=True)
    mask = metrics.bulk(reference)
    scale = metrics.norm(reference, mask)
    clean_scale = _concatenate(fallbacks, references)
    scale = torch.where(scale < CANCELLED * clean_scale, clean_scale, scale)
    apart = _concatenate(operands, references)
    scale = torch.where(empty & (apart > 0), apart, scale)
    empty = empty & (apart == 0)
    off = runs - reference
    squared = metrics.norm(off, mask).square().mean(dim=0)
    noise = (squared + (metrics.least(precision, terms) * scale).square()).sqrt()
    computed, end = [], 0
    for rows in references:
        at = slice(end, end := end + len(rows))
        ulps, massive_noise = _massive_floor(off[:, at], reference[at], mask[at], precision, terms)
        computed.append(
            Floor(
                *(reference[at], runs[:, at], mask[at], scale[at], noise[at], ulps, empty[at]),
                None if shift is None else shift[at],
                None if shift_noise is None else shift_noise[at],
                precision,
                mixture,
                massive_noise,
            )
        )
    return computed


def _concatenate(parts: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Concatenate lengths [T] of observations with these rows, 0 for absent ones."""
    zeros = [torch.zeros(len(rows), dtype=rows.dtype) for rows in like]
    return torch.cat([z if part is None else part for part, z in zip(parts, zeros, strict=True)])


def _massive_floor(
    off: Tensor, reference: Tensor, mask: Tensor, precision: Precision, terms: int
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the error of each massive element in ulps, and that of a row's together: [T].

    Four runs are too few to trust a small error of a single number. So the first is at least the
    site's root mean square, the second, relative to their size, at least what all rows show.
    """
    if bool(mask.all()):
        return None, None
    massive, least = ~mask, metrics.least(precision, terms)
    squared = (off[:, massive] / metrics.ulp(reference[massive], precision)).square().mean(dim=0)
    fewest = (least / metrics.ROUNDING[precision]) ** 2
    ulps = squared.clamp_min(float(squared.mean())).clamp_min(fewest).sqrt()
    size = metrics.norm(reference, massive)
    relative = metrics.ratio(metrics.norm(off, massive), size).square().mean(dim=0)
    pooled = float(relative[size > 0].mean().nan_to_num(0.0))
    return ulps, (relative.clamp_min(pooled) + least**2).sqrt() * size


def measures(
    candidates: Sequence[Tensor], noise_floors: Sequence[Floor], limits: Limits
) -> list[Distance]:
    """Compare finite candidates [T, D] of one width with the reference, all their rows at once."""
    rows = [f.view(candidate) for candidate, f in zip(candidates, noise_floors, strict=True)]
    reference = torch.cat([f.reference for f in noise_floors])
    mask = torch.cat([f.bulk for f in noise_floors])
    noise = torch.cat([f.noise for f in noise_floors])
    scale = torch.cat([f.scale for f in noise_floors])
    distance = metrics.norm(torch.cat(rows) - reference, mask)
    per_token = [
        metrics.ratio(*pair).tolist()
        for pair in ((distance, noise), (noise, scale), (distance, scale))
    ]
    computed, end = [], 0
    for candidate, viewed, noise_floor in zip(candidates, rows, noise_floors, strict=True):
        at = slice(end, end := end + len(viewed))
        tokens = _Tokens(*(values[at] for values in per_token))
        computed.append(_distance(tokens, candidate, viewed, noise_floor, limits))
    return computed


class _Tokens(NamedTuple):
    """Per token: ρ, the relative noise, the relative error."""

    ratios: list[float]
    noise: list[float]
    errors: list[float]


def _distance(
    tokens: _Tokens, candidate: Tensor, rows: Tensor, noise_floor: Floor, limits: Limits
) -> Distance:
    q_med, noise = metrics.median(tokens.ratios), metrics.median(tokens.noise)
    massive, together, massive_ulps = _massive(rows, noise_floor, limits)
    limit, local = far_limits(len(tokens.ratios), noise_floor, limits)
    zero = not bool(candidate[noise_floor.zero].any())
    return Distance(
        q_med=q_med,
        q_max=max(tokens.ratios),
        spread=metrics.spread(tokens.ratios),
        ratios=tuple(tokens.ratios),
        error=metrics.median(tokens.errors),
        floor=noise,
        smallest=_smallest(limit, q_med, noise),
        smallest_local=_smallest_local(tokens, local),
        largest=_largest(tokens, candidate, rows, noise_floor) if zero else math.inf,
        massive=max(massive, together / limits.far_max),
        massive_near=together / limits.massive,
        massive_ulps=massive_ulps,
        shift=_shift(candidate, noise_floor, limits),
        zero=zero,
        limit_med=limit,
        limit_max=local,
    )


def median_limit(tokens: int, limits: Limits) -> float:
    """Return the limit of Q_med. A single row has no median and is judged as the maximum is."""
    return limits.k_med if tokens > 1 else limits.k_max


def far_limits(tokens: int, noise_floor: Floor, limits: Limits) -> tuple[float, float]:
    """Return the limits of the median and of any one token beyond which the value is wrong.

    In bf16 a router has near-ties, and one token's row may come from another expert. So in a
    mixture only the median counts.
    """
    local = math.inf if noise_floor.routers_tie else limits.far_max
    return (limits.far_med if tokens > 1 else local), local


def _of_rows(shares: Sequence[float], noise_floor: Floor) -> float:
    """Return the worst of the rows' shares of a limit, or the median if routers tie."""
    if noise_floor.routers_tie:
        return metrics.median(shares) if len(shares) > 1 else 0.0
    return max(shares)


def _massive(candidate: Tensor, noise_floor: Floor, limits: Limits) -> tuple[float, float, float]:
    """Return three measures of the massive dimensions.

    They are the worst one as a share of what is allowed, the worst row's together in multiples of
    their noise, and the largest error in ulps. One may be off by `far_max` times the baseline
    error: where a massive activation arises, implementations differ several times more than
    elsewhere.
    """
    if noise_floor.ulps is None or noise_floor.massive_noise is None:
        return 0.0, 0.0, 0.0
    massive = ~noise_floor.bulk
    reference = noise_floor.reference[massive]
    off = (candidate[massive] - reference).abs() / metrics.ulp(reference, noise_floor.precision)
    share = off / (limits.far_max * noise_floor.ulps)
    rows = massive.nonzero()[:, 0]
    present = sorted(set(rows.tolist()))
    worst = [float(share[rows == row].max()) for row in present]
    together = metrics.ratio(
        metrics.norm(candidate - noise_floor.reference, massive), noise_floor.massive_noise
    )
    return (
        _of_rows(worst, noise_floor),
        _of_rows(together[present].tolist(), noise_floor),
        float(off.max()),
    )


def _shift(candidate: Tensor, noise_floor: Floor, limits: Limits) -> float:
    """Return the common shift of a row as a share of what is allowed.

    A few runs cannot show how large a single number may be, so the noise of the rest of the row
    also bounds it.
    """
    if noise_floor.shift is None or noise_floor.shift_noise is None:
        return 0.0
    off = (candidate.mean(dim=-1) - noise_floor.shift).abs()
    noise_of_mean = noise_floor.noise / math.sqrt(candidate.shape[-1])
    allowed = limits.single * torch.maximum(noise_floor.shift_noise, noise_of_mean)
    return _of_rows(metrics.ratio(off, allowed).flatten().tolist(), noise_floor)


def _largest(tokens: _Tokens, candidate: Tensor, rows: Tensor, noise_floor: Floor) -> float:
    """Return the relative error of whatever is furthest off.

    Rows, massive dimensions and common shifts count. A common shift moves every entry, so it is √D
    times as long, and relative to the whole row with its mean.
    """
    sizes = list(tokens.errors)
    if noise_floor.ulps is not None:
        massive = ~noise_floor.bulk
        reference = noise_floor.reference[massive]
        sizes.append(float(metrics.ratio((rows[massive] - reference).abs(), reference.abs()).max()))
    if noise_floor.shift is not None:
        wide = math.sqrt(candidate.shape[-1])
        shift = (candidate.mean(dim=-1) - noise_floor.shift).abs() * wide
        whole = torch.hypot(noise_floor.scale, noise_floor.shift * wide)
        sizes += metrics.ratio(shift, whole).flatten().tolist()
    return max(sizes)


def _smallest(limit: float, ratio: float, noise: float) -> float | None:
    """Return √(k² − ρ²)·E: an independent error of this size would have passed the limit."""
    if not (ratio <= limit and math.isfinite(noise) and math.isfinite(limit)):
        return None
    return math.sqrt(limit**2 - ratio**2) * noise


def _smallest_local(tokens: _Tokens, limit: float) -> float | None:
    """Return the largest error that would have passed at some token; None if nothing bounds it."""
    if math.isinf(limit):
        return None
    sizes = [
        _smallest(limit, ratio, noise)
        for ratio, noise in zip(tokens.ratios, tokens.noise, strict=True)
    ]
    bounded = [size for size in sizes if size is not None]
    return max(bounded) if len(bounded) == len(sizes) else None


def within(distance: Distance, limits: Limits) -> bool:
    """Return whether the candidate is as close to the reference as baseline runs are."""
    return (
        distance.q_med <= median_limit(len(distance.ratios), limits)
        and distance.q_max <= limits.k_max
        and distance.massive_near <= 1.0
        and distance.bounded
    )


def drifts(distance: Distance) -> bool:
    """Return whether it is beyond the noise floor, but no other value: a coarser computation."""
    return (
        distance.q_med <= distance.limit_med
        and distance.q_max <= distance.limit_max
        and distance.bounded
    )

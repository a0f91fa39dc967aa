"""The judge in small, for scripts: the same numbers and limits, without a diagnosis.

It is held against `conformance.judge` on the same observations by the tests. What it leaves
out: explanations, whose fault it is, and how improbable several excusable tokens are together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from conformance.judge.measures import metrics, relations, texts, tokens
from conformance.records import Precision, Site

#: First that fits decides.
ORDER = (
    *("missing", "structure", "dtype", "nonfinite", "aliased", "vacuous", "dropped", "partial"),
    *("contaminated", "misscaled", "wrong", "drift", "match"),
)
#: How much more than evenly spread noise gains scatter at the least, and the share of the
#: off-axis noise that may lie along the write.
UNEVEN, ALONG = 2.0, 0.06

Values = Mapping[Site, Tensor]
#: A verdict and why, in words.
Claim = tuple[str, str]


@dataclass(frozen=True)
class Honest:
    """The truth's rows of one observation, the honest bf16 runs', and their distance."""

    truth: Tensor
    runs: Tensor
    bulk: Tensor
    scale: Tensor
    noise: Tensor
    shift: Tensor | None

    def view(self, values: Tensor) -> Tensor:
        wide = metrics.rows(values)
        return wide if self.shift is None else wide - wide.mean(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Known:
    """What the rules that a scenario brings about may need."""

    mine: Values
    truth: Values
    floors: Mapping[Site, Honest]
    claims: dict[Site, Claim]
    members: Sequence[Values]
    limits: Any


#: Says more about a cell's observations.
Rule = Callable[[Known], Sequence[Claim]]


def verdict_on(
    mine: Values, truth: Values, members: Sequence[Values], limits: Any, rules: Sequence[Rule] = ()
) -> list[Claim]:
    """What there is to say about the observations, what decides first."""
    known: dict[Site, Honest] = {}
    claims: dict[Site, Claim] = {}
    for site in dict.fromkeys([*truth, *mine]):
        said = form(site, mine, truth, members)
        if said:
            claims[site] = said
        elif site.name != "tokens" and truth[site].is_floating_point():
            known[site] = honest(site, truth, members)
        elif site.name != "tokens" and not torch.equal(mine[site], truth[site]):
            claims[site] = ("wrong", "integers differ")
    same = relations.aliased(mine, known)  # type: ignore[arg-type] # all it reads is here
    claims |= {site: ("aliased", words) for site, words in same.items()}
    for site, floor in known.items():
        if site not in claims:
            claims[site] = distance_of(mine[site], floor, limits)
    seen = Known(mine, truth, known, claims, members, limits)
    more = [claim for rule in rules for claim in rule(seen)]
    found = [(kind, f"{site}: {words}") for site, (kind, words) in claims.items()]
    found = sorted([*found, *more], key=lambda claim: ORDER.index(claim[0]))
    return found or [("unknown", "nothing was observed")]


def form(site: Site, mine: Values, truth: Values, members: Sequence[Values]) -> Claim | None:
    """What needs no numbers: presence, shape, dtype, finiteness."""
    if site not in mine:
        return "missing", "was not observed"
    if site not in truth:
        return "structure", "the reference has no such observation"
    value, wanted = mine[site], truth[site]
    if texts.is_text(value) and texts.is_text(wanted):
        return None if torch.equal(value, wanted) else ("wrong", "says something else")
    if value.shape != wanted.shape:
        return "structure", f"shape {list(value.shape)} instead of {list(wanted.shape)}"
    return kind_of(site, value, wanted, members)


def kind_of(site: Site, value: Tensor, wanted: Tensor, members: Sequence[Values]) -> Claim | None:
    """Dtype and finiteness."""
    allowed = {member[site].dtype for member in members}
    if wanted.is_floating_point():
        allowed |= {torch.bfloat16} | ({torch.float32} if site.name == "logits" else set())
    if value.dtype not in allowed:
        return "dtype", f"{value.dtype} instead of {' or '.join(map(str, allowed))}"
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        return "nonfinite", f"{int((~torch.isfinite(value)).sum())} values are not finite"
    return None


def honest(site: Site, truth: Values, members: Sequence[Values]) -> Honest:
    """The noise floor: how far honest bf16 computations are from the truth, per token."""
    rows = metrics.rows(truth[site])
    runs = torch.stack([metrics.rows(member[site]) for member in members])
    shift = rows.mean(dim=-1) if site.name == "logits" else None
    if shift is not None:
        rows, runs = rows - shift.unsqueeze(-1), runs - runs.mean(dim=-1, keepdim=True)
    mask = metrics.bulk(rows)
    scale = metrics.norm(rows, mask)
    clean = replace(site, run="clean")
    if site.run == "edited" and clean in truth and truth[clean].shape == truth[site].shape:
        before = honest(clean, truth, members).scale
        scale = torch.where(scale == 0, before, scale)
    squared = metrics.norm(runs - rows, mask).square().mean(dim=0)
    noise = (squared + (metrics.ROUNDING[Precision.BF16] * scale).square()).sqrt()
    return Honest(rows, runs, mask, scale, noise, shift)


def distance_of(value: Tensor, floor: Honest, limits: Any) -> Claim:
    """How far the value is from the truth, in multiples of the noise floor."""
    off = floor.view(value) - floor.truth
    ratios = metrics.ratio(metrics.norm(off, floor.bulk), floor.noise).tolist()
    middle, largest = metrics.median(ratios), max(ratios)
    said = f"{middle:.3g}× the noise floor at the median token, {largest:.3g}× at the worst"
    bounded, apart = within_bounds(value, off, floor, limits)
    if not bounded:
        return "wrong", f"{said}; {apart}"
    if largest <= limits.k_max and (middle <= limits.k_med or len(ratios) == 1):
        return "match", said
    spread = metrics.spread(ratios)
    drifts = largest <= limits.drift_max and spread > limits.drift_spread
    return ("drift" if drifts else "wrong"), said


def within_bounds(value: Tensor, off: Tensor, floor: Honest, limits: Any) -> tuple[bool, str]:
    """What a few honest runs can only bound: massive dimensions, and the shift of all logits."""
    empty = ~floor.truth.any(dim=-1) & ~floor.runs.any(dim=-1).any(dim=0)
    if floor.shift is None and bool(metrics.rows(value)[empty].any()):
        return False, "not zero where the truth is"
    massive = ~floor.bulk
    if bool(massive.any()):
        step = metrics.ulp(floor.truth[massive])
        squared = ((floor.runs - floor.truth)[:, massive] / step).square().mean(dim=0)
        allowed = squared.clamp_min(float(squared.mean())).clamp_min(1.0).sqrt()
        if bool(((off[massive].abs() / step) > limits.drift_max * allowed).any()):
            return False, "a massive activation is further off than that"
    if floor.shift is not None:
        apart = (metrics.rows(value).mean(dim=-1) - floor.shift).abs()
        share = floor.noise / math.sqrt(value.shape[-1])
        if bool((apart > limits.drift_max * share).any()):
            return False, "all of them are shifted"
    return True, ""


def choices(known: Known) -> list[Claim]:
    """Generated ids: are they such as the noise of the logits explains?"""
    found = []
    for site in known.truth:
        logits = replace(site, name="logits")
        if site.name != "tokens" or site in known.claims or logits not in known.floors:
            continue
        floor = known.floors[logits]
        token, size = int(known.mine[site]), floor.truth.numel()
        if not 0 <= token < size:
            found.append(("wrong", f"{site}: {token} is no id of {size}"))
            continue
        one = tokens.choice(token, floor.truth.flatten(), floor.runs.flatten(1), known.limits)
        said = f"{site}: token {token}, where {one.best} is the best by {one.margin:.3g}"
        kind = "wrong" if one.flipped and not one.benign else "match"
        found.append((kind, f"{said}; noise {one.noise:.3g}"))
    return found


def equalities(pairs: Sequence[tuple[str, str]]) -> Rule:
    """Observations that must be bitwise equal."""

    def rule(known: Known) -> list[Claim]:
        found = [relations.equal_within(known.mine, known.truth, pair) for pair in pairs]
        return [("wrong", f"not so: {o.name}; {o.detail}") for o in found if not o.holds]

    return rule


@dataclass(frozen=True)
class Change:
    """How one observation changed by the write, of the touched rows: Δmine against Δtruth.

    `own` is how the honest runs' gains scatter around 1, `side` what is off the write's axis in
    them, each for the whole ([0]) and per row; `width` counts the dimensions alike.
    """

    g: float
    h: float
    each: Tensor
    own: Tensor
    side: Tensor
    width: Tensor
    leaks: tuple[int, ...]

    @property
    def even(self) -> Tensor:
        return self.side / self.width.sqrt()


def effects(seen: Known) -> list[Claim]:
    """Did the write land? The gain g = ⟨Δmine, Δtruth⟩ / ⟨Δtruth, Δtruth⟩ of each observation."""
    mine, known, claims, limits = seen.mine, seen.floors, seen.claims, seen.limits
    changes: dict[Site, Change] = {}
    for site, after in known.items():
        clean = replace(site, run="clean")
        before = known.get(clean)
        if site.run == "edited" and before and before.truth.shape == after.truth.shape:
            changes[site] = change_of(mine[site], mine[clean], before, after, limits)
    uneven = {name: unevenness(name, changes) for name in {site.name for site in changes}}
    found: dict[str, list[str]] = {}
    for site, change in changes.items():
        kind, said = landing(change, uneven[site.name], limits)
        if claims[replace(site, run="clean")][0] in {"wrong", "aliased"} and kind in ORDER:
            continue
        found.setdefault(kind, []).append(f"{site}: {said}")
    if not set(found) - {"powerless"}:
        return [("vacuous", "the write is too small to be seen, or changes nothing observed")]
    last = {kind: f"{words[0]} (one of {len(words)})" for kind, words in found.items()}
    if {"dropped", "landed"} <= set(found):
        last["partial"] = last.pop("dropped")
    elif "misscaled" in found or "partial" in found:
        last.pop("dropped", None)
    return [(kind, words) for kind, words in last.items() if kind in ORDER]


def change_of(edited: Tensor, clean: Tensor, before: Honest, after: Honest, limits: Any) -> Change:
    wanted = (after.truth - before.truth) * before.bulk
    runs = (after.runs - before.runs) * before.bulk
    change = (after.view(edited) - before.view(clean)) * before.bulk
    tt, ct, cc = (one.sum(-1) for one in (wanted**2, change * wanted, change**2))
    rt, rr = (runs * wanted).sum(-1), (runs**2).sum(-1)
    touched = tt.sqrt() > 1e-5 * before.scale
    still = torch.maximum(rr.max(dim=0).values.sqrt(), math.sqrt(2) * before.noise)
    leaks = ~touched & (cc.sqrt() > limits.margin * still)
    tt, ct, cc, rt, rr = tt[touched], ct[touched], cc[touched], rt[:, touched], rr[:, touched]
    # The first column is all rows together.
    parts = [torch.cat([one.sum(-1, keepdim=True), one], dim=-1) for one in (tt, ct, cc, rt, rr)]
    tt, ct, cc, rt, rr = parts
    gains = rt / tt
    width = before.bulk[touched].sum(-1)
    return Change(
        g=float(ct[0] / tt[0]),
        h=math.sqrt(max(0.0, float(cc[0] / tt[0] - (ct[0] / tt[0]) ** 2))),
        each=(ct / tt)[1:],
        own=((gains - 1) ** 2).mean(dim=0).sqrt(),
        side=(rr / tt - gains**2).clamp_min(0).mean(dim=0).sqrt(),
        width=torch.cat([width.sum(-1, keepdim=True), width]),
        leaks=tuple(torch.nonzero(leaks).flatten().tolist()),
    )


def unevenness(name: str, changes: Mapping[Site, Change]) -> float:
    """How much more than evenly spread noise the gains of one kind of observation scatter."""
    ratios = [
        float(one.own[0] / one.even[0])
        for site, one in changes.items()
        if site.name == name and len(one.each) and one.even[0] > 0
    ]
    return max(UNEVEN, math.sqrt(sum(r * r for r in ratios) / len(ratios)) if ratios else 0.0)


def landing(change: Change, uneven: float, limits: Any) -> Claim:
    """What one observation says: landed, dropped, partial, misscaled, contaminated, powerless."""
    if change.leaks:
        return "contaminated", f"tokens {list(change.leaks)} changed, which must not"
    if not len(change.each):
        return "powerless", "the write does not reach it"
    sigmas = torch.maximum(change.own, uneven * change.even)
    sigma = max(float(sigmas[0]), ALONG * float(change.side[0]))
    room = max(limits.gain_tolerance, limits.gain_sigmas * sigma)
    said = f"gain {change.g:.2f} ± {sigma:.2f}, off-axis {change.h:.2f}"
    if not sigma <= limits.power:
        return "powerless", said
    if in_part(change, sigmas[1:], limits):
        return "partial", f"{said}: some tokens have it, some do not"
    if change.h > math.hypot(limits.off_axis, limits.k_max * float(change.side[0])):
        return "misscaled", f"{said}: in another direction"
    size = "landed" if abs(change.g - 1) <= room else "misscaled"
    return ("dropped", f"{said}: no effect") if abs(change.g) <= room else (size, said)


def in_part(change: Change, sigmas: Tensor, limits: Any) -> bool:
    """Are there tokens that surely have a gain of 0, and such that have one of 1?"""
    sure = sigmas <= limits.power
    rooms = (limits.gain_sigmas * sigmas).clamp_min(limits.gain_tolerance)
    without = sure & (change.each.abs() <= rooms)
    reached = sure & ((change.each - 1).abs() <= rooms)
    return bool(without.any()) and bool(reached.any())

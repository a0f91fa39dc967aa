"""The gain of a write on synthetic data, where it is known exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conformance.judge.cell.measures import gain
from conformance.judge.cell.measures.gain import Landing
from conformance.spec.records import BF16_LIMITS, Precision
from tests.judge.cell import toy

T, D = 5, 48
#: As if one precision had a gain tolerance of a tenth and judged gains at four sigmas.
LIMITS = replace(BF16_LIMITS, gain_tolerance=0.1, gain_sigmas=4.0, leak=4.0, far_max=3.0)


class Case:
    """A clean reference, a change of it, and four baseline runs of both."""

    def __init__(self, change: Tensor, noise: float = 0.002, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.clean = torch.randn(T, D, generator=draw, dtype=torch.float64)
        self.change = change
        own = torch.randn(2, 4, T, D, generator=draw, dtype=torch.float64) * noise
        own[1, :, change.norm(dim=-1) == 0] = own[0, :, change.norm(dim=-1) == 0]
        self.floors = (
            toy.floor(self.clean, self.clean + own[0]),
            toy.floor(self.clean + change, self.clean + change + own[1]),
        )

    def effect(self, change: Tensor, **more: Any) -> gain.Effect:
        """The effect on a candidate that changes so; `more` are further fields of the pair."""
        pair = gain.RunPair(self.clean, self.clean + change, *self.floors, **more)
        return gain.effect(gain.changes([pair], LIMITS)[0], LIMITS)


def steering(dose: float = 0.5, rows: slice = slice(None)) -> Tensor:
    change = torch.zeros(T, D, dtype=torch.float64)
    change[rows] = dose * torch.randn(
        D, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    return change


def across(change: Tensor) -> Tensor:
    """Another direction, at right angles."""
    other = torch.randn(T, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return other - (other * change).sum() / (change * change).sum() * change


@pytest.mark.parametrize(
    ("g", "h", "landing"),
    [
        (1.0, 0.0, Landing.LANDED),
        (1.05, 0.0, Landing.LANDED),
        (0.0, 0.0, Landing.DROPPED),
        (0.05, 0.0, Landing.DROPPED),
        (-0.05, 0.0, Landing.DROPPED),
        (2.0, 0.0, Landing.MISSCALED),
        (-1.0, 0.0, Landing.MISSCALED),
        (0.5, 0.0, Landing.MISSCALED),
        (1.0, 1.0, Landing.MISDIRECTED),
        (0.0, 1.0, Landing.MISDIRECTED),  # though its gain is that of no write
    ],
)
def test_landings(g: float, h: float, landing: Landing) -> None:
    change = steering()
    other = across(change)
    found = Case(change).effect(g * change + h * change.norm() * other / other.norm())
    assert found.landing is landing
    assert found.gain is not None
    assert (found.gain.g, found.gain.h) == pytest.approx((g, h), abs=1e-6)


def test_some_tokens_without_the_write_are_partial_and_named() -> None:
    change = steering()
    half = change.clone()
    half[[1, 3]] = 0
    found = Case(change).effect(half)
    assert found.landing is Landing.PARTIAL
    assert found.without == (1, 3) and found.reached == (0, 2, 4)


def test_gain_per_token_is_given_where_the_reference_changes() -> None:
    change = steering(rows=slice(3, None))
    found = Case(change).effect(change).gain
    assert found is not None
    assert [math.isnan(g) for g in found.tokens] == [True] * 3 + [False] * 2
    assert found.tokens[3:] == pytest.approx([1.0, 1.0])


def test_a_change_where_the_reference_has_none_leaks_unless_it_is_noise() -> None:
    change = steering(rows=slice(3, None))
    wide = change.clone()
    wide[1] = change[3]
    found = Case(change).effect(wide)
    assert found.leaking == (1,) and found.leak > 10
    jitter = torch.randn(T, D, generator=torch.Generator().manual_seed(4)).double() * 0.002
    found = Case(change).effect(change + jitter)
    assert found.leaking == () and 0 < found.leak < LIMITS.leak


def test_a_bit_of_a_row_that_may_not_change_leaks() -> None:
    change = steering(rows=slice(3, None))
    case, wide = Case(change), change.clone()
    wide[1, 0] = 1e-12
    still = torch.tensor([True, True, True, False, False])
    assert case.effect(wide, still=still).leaking == (1,)
    assert case.effect(wide).leaking == case.effect(change, still=still).leaking == ()


@given(st.integers(0, 2**31), st.sampled_from([0.005, 0.02, 0.5]))
def test_two_runs_of_an_engine_that_does_not_repeat_round_apart(seed: int, dose: float) -> None:
    """The baseline runs repeat, so that all but the write cancels in theirs (seen on CUDA, where
    vLLM's core is a process of its own and takes the requests of a trace as they come).
    """
    draw = torch.Generator().manual_seed(seed)
    noise, change = 2e-5, steering(dose)
    clean = torch.randn(T, D, generator=draw, dtype=torch.float64)
    own = torch.randn(4, T, D, generator=draw, dtype=torch.float64) * noise
    floors = tuple(
        toy.floor(clean + edit, clean + edit + own, precision=Precision.FLOAT32)
        for edit in (torch.zeros_like(change), change)
    )
    before, after = torch.randn(2, T, D, generator=draw, dtype=torch.float64) * noise
    limits = replace(LIMITS, gain_tolerance=2**-12, off_axis=2**-12, gain_room=0.1)
    pair = gain.RunPair(clean + before, clean + change + after, *floors, repeats=False)
    assert gain.effect(gain.changes([pair], limits)[0], limits).landing is Landing.LANDED
    if dose < 0.01:  # small beside the rounding
        strict = gain.changes([replace(pair, repeats=True)], limits)[0]
        assert gain.effect(strict, limits).landing is Landing.MISDIRECTED
    # What is wrong by more than rounding is found all the same.
    other = replace(pair, edited=pair.edited + 0.3 * dose * torch.randn(D, generator=draw))
    assert gain.effect(gain.changes([other], limits)[0], limits).failed


def test_what_float32_itself_changes_is_not_written_to() -> None:
    change = steering(rows=slice(3, None)) + 1e-7
    case = Case(steering(rows=slice(3, None)))
    floors = (case.floors[0], toy.floor(case.clean + change, case.floors[1].baseline + 1e-7))
    pair = gain.RunPair(case.clean, case.clean + change, *floors)
    assert gain.changes([pair], BF16_LIMITS)[0].touched == (3, 4)


def test_without_a_change_of_the_reference_there_is_no_gain() -> None:
    found = Case(steering(0.0)).effect(torch.zeros(T, D, dtype=torch.float64))
    assert found.landing is Landing.UNTOUCHED and found.gain is None and not found.moved


def test_a_change_below_the_noise_has_no_power() -> None:
    change = steering(1e-4)
    found = Case(change, noise=0.02).effect(change)
    assert found.landing is Landing.POWERLESS
    assert found.gain is not None and LIMITS.gain_sigmas * found.gain.sigma > LIMITS.gain_room


def test_baseline_runs_that_agree_by_luck_do_not_make_the_gain_certain() -> None:
    """σ_g is at least what their off-axis noise, spread evenly, would give."""
    change = steering(0.01)
    case = Case(change, noise=0.0)
    other = across(change)
    baseline = torch.stack([case.clean + change + 0.02 * other] * 4)
    case.floors = (case.floors[0], toy.floor(case.clean + change, baseline))
    even = 0.02 * float(other.norm() / change.norm()) / math.sqrt(T * D)
    found = case.effect(change).gain
    assert found is not None and found.sigma == pytest.approx(even, rel=0.05)


def test_the_ensembles_own_scatter_counts_where_it_is_larger() -> None:
    change = steering()
    case = Case(change, noise=0.0)
    baseline = torch.stack([case.clean + (1 + off) * change for off in (0.07, -0.07, 0.07, -0.07)])
    case.floors = (case.floors[0], toy.floor(case.clean + change, baseline))
    found = case.effect(change).gain
    assert found is not None and found.sigma == pytest.approx(0.07)


def test_a_token_whose_baseline_runs_agree_by_luck_does_not_make_a_write_partial() -> None:
    g = np.array([0.0, 1.0])

    def seen(sigma: float) -> gain.Effect:
        noise = np.full(2, sigma)
        found = gain.ObservedChange(2, 0.0, (), True, 1.0, 0.0, 0.0, 0.0, (0, 1), g, noise)
        return gain.effect(found, LIMITS)

    assert seen(0.01).landing is Landing.PARTIAL and seen(0.01).without == (0,)
    assert seen(0.2).landing is Landing.LANDED and seen(0.2).without == ()


@pytest.mark.parametrize(
    ("tipped", "astray", "tie", "landing"),
    [
        ((), (), True, Landing.LANDED),
        ((3,), (), True, Landing.LANDED),
        ((3,), (), False, Landing.MISDIRECTED),
        ((1, 2, 3), (), True, Landing.MISDIRECTED),
        ((1, 2, 3), (1, 2, 3), True, Landing.LANDED),
        ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4), True, Landing.UNTOUCHED),
    ],
)
def test_where_routers_tie_a_few_rows_may_take_another_expert(tipped, astray, tie, landing):
    """A small write tips a router, or the clean run took another expert."""
    change = steering()
    change[list(tipped)] += 8 * torch.randn(len(tipped), D, dtype=torch.float64)
    far = torch.zeros(T, dtype=torch.bool)
    far[list(astray)] = True
    found = Case(steering()).effect(change, astray=far if tie else None)
    assert found.landing is landing


@pytest.mark.parametrize("times", [0.0, 2.0, -1.0])
def test_where_routers_tie_a_write_of_another_size_is_found(times: float) -> None:
    far = torch.zeros(T, dtype=torch.bool)
    found = Case(steering()).effect(times * steering(), astray=far)
    assert found.failed and found.landing is not Landing.MISDIRECTED

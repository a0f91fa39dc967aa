"""Chosen ids against margins."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.judge.cell.measures import tokens
from conformance.spec.records import BF16_LIMITS, Precision, Site

LIMITS = replace(BF16_LIMITS, margin=4.0)


def logits(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def baseline(reference: torch.Tensor, noise: float) -> torch.Tensor:
    """Four runs whose logit 1 is off by ±noise against the reference."""
    found = reference.repeat(4, 1)
    found[:, 1] += torch.tensor([noise, -noise, noise, -noise], dtype=torch.float64)
    return found


@pytest.mark.parametrize(
    ("values", "chosen", "noise", "limit", "flipped", "benign", "noise_of_pair"),
    [
        ((1.0, 5.0, 3.0), 1, 0.1, 4.0, False, True, None),  # the best token
        ((1.0, 1.39, -9.0), 0, 0.1, 4.0, True, True, 0.1),
        ((1.0, 1.41, -9.0), 0, 0.1, 4.0, True, False, 0.1),
        # The noise is at least one bf16 step: at 8 to 16 it is 1/16, and four are a quarter.
        ((10.0, 10.24, -9.0), 0, 0.0, 4.0, True, True, 1 / 16),
        ((10.0, 10.26, -9.0), 0, 0.0, 4.0, True, False, 1 / 16),
        ((1.0, 1.5, -9.0), 0, 0.1, 6.0, True, True, 0.1),
        ((1.0, 1.5, -9.0), 0, 0.1, 4.0, True, False, 0.1),
    ],
)
def test_a_flip_is_benign_within_a_multiple_of_the_noise_of_the_pair(
    values: tuple[float, ...],
    chosen: int,
    noise: float,
    limit: float,
    flipped: bool,
    benign: bool,
    noise_of_pair: float | None,
) -> None:
    reference, limits = logits(*values), replace(LIMITS, margin=limit)
    choice = tokens.choice(chosen, reference, baseline(reference, noise), limits)
    assert (choice.flipped, choice.benign, choice.best) == (flipped, benign, 1)
    assert noise_of_pair is None or choice.noise == pytest.approx(noise_of_pair)


def test_the_chance_of_a_flip_follows_the_margin() -> None:
    near, far = logits(1.0, 1.05, -9.0), logits(1.0, 3.0, -9.0)
    assert tokens.choice(1, near, baseline(near, 0.1), LIMITS).chance == pytest.approx(
        0.31, abs=0.01
    )
    assert tokens.choice(1, far, baseline(far, 0.1), LIMITS).chance < 1e-20


@given(st.lists(st.floats(0, 1), max_size=6))
def test_at_least_is_the_poisson_binomial(chances: list[float]) -> None:
    for count in range(len(chances) + 1):
        brute = 0.0
        for outcome in itertools.product((0, 1), repeat=len(chances)):
            if sum(outcome) >= count:
                weight = 1.0
                for hit, chance in zip(outcome, chances, strict=True):
                    weight *= chance if hit else 1 - chance
                brute += weight
        assert tokens.at_least(count, chances) == pytest.approx(brute, abs=1e-9)


def flip(margin: float) -> tokens.TokenChoice:
    reference = logits(1.0, 1.0 + margin, -9.0)
    return tokens.choice(0, reference, baseline(reference, 0.1), LIMITS)


def test_one_excusable_flip_is_excused_and_many_are_not() -> None:
    one = tokens.flips([("a", flip(0.7))])
    assert flip(0.7).chance < tokens.FLIPS_IMPROBABLE
    assert one is not None and one.holds
    two = tokens.flips([("a", flip(0.5)), ("b", flip(0.5))])
    assert two is not None and not two.holds and "first at a" in two.detail
    likely = tokens.flips([(name, flip(0.02)) for name in "abcd"])
    assert likely is not None and likely.holds
    assert tokens.flips([]) is None


def test_agreed_steps_end_at_the_first_difference() -> None:
    def ids(*values: int) -> dict[Site, torch.Tensor]:
        return {Site("tokens", 0, step): torch.tensor([v]) for step, v in enumerate(values)}

    assert tokens.agreed_steps(ids(4, 5, 6), ids(4, 5, 6)) == {("", 0): 3}
    assert tokens.agreed_steps(ids(4, 9, 6), ids(4, 5, 6)) == {("", 0): 1}
    assert tokens.agreed_steps({}, ids(4)) == {("", 0): 0}


@pytest.mark.parametrize(
    ("own", "chosen", "token", "holds"),
    [
        ((0.0, 5.0, 5.0 - 1e-9), 1, 1, True),
        ((0.0, 5.0, 5.0 - 1e-9), 1, 2, False),  # however near the runner-up is: no tolerance
        ((5.0, 5.0), 0, 1, True),  # equal ones are all the largest
        ((0.0, 5.0), 0, 0, None),  # forced on the reference
    ],
)
def test_a_greedy_token_is_the_largest_of_its_own_logits(own, chosen, token, holds):
    logits_at, tokens_at = Site("logits", 0, 3), Site("tokens", 0, 3)
    values = {logits_at: logits(*own)}
    greedy = tokens.largest_sites(values | {tokens_at: torch.tensor([chosen])})
    found = tokens.follow_logits(values | {tokens_at: torch.tensor([token])}, greedy)
    assert (found.holds if found else None) is holds


def test_a_step_of_float32_is_far_finer() -> None:
    reference = logits(10.0, 10.0 + 1e-3, -9.0)
    limits = replace(LIMITS, margin=100.0)
    choice = tokens.choice(0, reference, baseline(reference, 0.0), limits, Precision.FLOAT32)
    assert choice.noise == 2.0**-20 and not choice.benign

"""Values that a trace rounds by itself, judged in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import conformance
from conformance.judge.cell.measures.rounded import kinds, rounded_to, settled
from conformance.spec.records import Precision, Site, Verdict

SITE = Site("value")
KINDS = (torch.float16, torch.bfloat16)
coarse = st.sampled_from(KINDS)
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def one(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return settled({SITE: value}, {SITE: reference}, kinds({SITE: reference}))[SITE]


@given(coarse, seeds, st.sampled_from([3, 256, 4096]), st.booleans())
def test_of_two_roundings_no_more_is_left_than_the_values_differ_by(kind, seed, width, back):
    reference = drawn(seed, 4, width)
    noise = 1e-4 * drawn(seed + 1, 4, width)
    value, right = (reference + noise).to(kind), reference.to(kind)
    if back:
        value, right = value.float(), right.float()
    left = one(value, right).double() - right.double()
    assert left.norm() <= 3 * noise.norm()


@given(coarse, seeds)
def test_a_fault_of_half_a_rounding_in_every_entry_stays(kind, seed):
    reference = drawn(seed, 16, 256)
    value = (reference * (1 + torch.finfo(kind).eps / 2)).to(kind)
    assert torch.equal(one(value, reference.to(kind)), value)


@given(coarse, seeds, st.integers(2, 100))
def test_an_entry_further_off_than_a_neighbour_stays(kind, seed, times):
    reference = drawn(seed, 8, 64).to(kind)
    value = reference.clone()
    for _ in range(times):
        value[3, 5] = torch.nextafter(value[3, 5], torch.tensor(torch.inf, dtype=kind))
    assert torch.equal(one(value, reference)[3, 5], value[3, 5])


@pytest.mark.parametrize("kind", KINDS)
def test_what_overflows_is_no_neighbour_of_the_largest(kind):
    reference = drawn(0, 4, 64).to(kind)
    reference[0, 0] = torch.finfo(kind).max
    value = reference.clone()
    value[0, 0] = torch.inf
    assert one(value, reference) is value


@pytest.mark.parametrize("kind", KINDS)
def test_the_judge_lets_a_rounding_pass_and_finds_a_thousandth(kind):
    """As a user's `.half()` in a trace: one entry of 384 went to the other side."""
    exact = 3 * drawn(0, 6, 64)
    floor = [(exact * (1 + 1e-7 * drawn(1 + i, 6, 64))).to(kind) for i in range(4)]
    reference = exact.to(kind)
    other = reference.clone()
    other[2, 7] = torch.nextafter(reference[2, 7], torch.tensor(torch.inf, dtype=kind))

    def judged(candidate: torch.Tensor) -> Verdict:
        return conformance.compare(
            candidate, reference, floor=floor, precision=Precision.FLOAT32
        ).verdict

    assert judged(other).passes
    assert judged((exact * (1 + torch.finfo(kind).eps / 2)).to(kind)) is Verdict.WRONG
    other[2, 7] *= 1.1
    assert judged(other) is Verdict.WRONG


def test_float32_that_nobody_rounded_is_left_alone():
    reference = drawn(0, 4, 256)
    value = reference + 1e-6 * drawn(1, 4, 256)
    assert rounded_to(reference) is None
    assert one(value, reference) is value
    assert one(value.half(), reference) is not reference
    integers = torch.arange(12)
    assert one(integers, integers + 1) is integers


@pytest.mark.parametrize("kind", KINDS)
def test_a_massive_entry_lets_not_all_others_be_neighbours(kind):
    reference = drawn(0, 4, 64)
    reference[:, 3] = 2000.0
    right = reference.to(kind)
    value = torch.nextafter(right, torch.full_like(right, torch.inf))
    value[:, 3] = right[:, 3]
    assert torch.equal(one(value, right), value)


@pytest.mark.parametrize("kind", KINDS)
def test_single_numbers_are_counted_together(kind):
    """One of a value may be a neighbour, whatever its chance; not one of each of forty values."""
    reference = {Site("value", step=step): drawn(step, 1).to(kind) for step in range(40)}
    up = torch.tensor([torch.inf], dtype=kind)
    every = {site: torch.nextafter(value, up) for site, value in reference.items()}
    left = settled(every, reference, kinds(reference))
    assert all(torch.equal(left[site], every[site]) for site in reference)
    alone = reference | {Site("value", step=3): every[Site("value", step=3)]}
    assert settled(alone, reference, kinds(reference)) == reference


def test_one_row_is_no_excuse_for_another():
    reference = drawn(0, 256, 64).half()
    value = reference.clone()
    value[9] = torch.nextafter(reference[9], torch.full_like(reference[9], torch.inf))
    assert torch.equal(one(value, reference), value)


def test_counts_fit_every_dtype_and_were_not_rounded():
    counts = torch.arange(1, 65, dtype=torch.float32).reshape(4, 16)
    assert kinds({SITE: counts}) == {}
    assert kinds({SITE: drawn(0, 4, 16).bfloat16().float()}) == {SITE: torch.bfloat16}

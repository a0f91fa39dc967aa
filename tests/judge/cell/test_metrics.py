"""The distances: what counts as massive, ulps, medians, spread."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.judge.cell.measures import floor, metrics
from conformance.judge.cell.measures.floor import Floor
from conformance.spec.records import BF16_LIMITS, Limits, Precision, Thresholds
from tests.judge.cell import toy

sizes = st.floats(1e-3, 1e3)


def noisy(tokens: int = 6, width: int = 32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A reference [T, D] and four baseline runs of 1 % noise."""
    draw = torch.Generator().manual_seed(seed)
    reference = torch.randn(tokens, width, generator=draw, dtype=torch.float64)
    off = torch.randn(4, tokens, width, generator=draw, dtype=torch.float64)
    return reference, reference + 0.01 * off * reference.norm(dim=-1, keepdim=True) / width**0.5


def judged(candidate: torch.Tensor, noise_floor: Floor, limits: Limits = BF16_LIMITS) -> str:
    distance = toy.measure(candidate, noise_floor, limits)
    if floor.within(distance, limits):
        return "match"
    return "drift" if floor.drifts(distance) else "wrong"


def test_rows_of_vectors_numbers_and_batches() -> None:
    shapes = [metrics.rows(torch.zeros(shape)).shape for shape in ((5,), (), (2, 3, 5))]
    assert shapes == [(1, 5), (1, 1), (6, 5)]
    assert metrics.rows(torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.float64


def test_massive_dimensions_are_not_bulk() -> None:
    reference = torch.ones(2, 10, dtype=torch.float64)
    reference[1, 4] = 20.5
    reference[0, 4] = 19.5
    assert (~metrics.bulk(reference)).nonzero().tolist() == [[1, 4]]


def test_a_mostly_zero_row_has_no_massive_values_of_ordinary_size() -> None:
    reference = torch.zeros(1, 10, dtype=torch.float64)
    reference[0, :3] = torch.tensor([1.0, 2.0, 300.0])
    assert metrics.bulk(reference)[0].tolist() == [True, True, False] + [True] * 7
    assert bool(metrics.bulk(torch.zeros(2, 4)).all())


@given(st.floats(2.0**-120, 2.0**120))
def test_ulp_is_the_distance_to_the_next_bf16(size: float) -> None:
    low = torch.tensor([size], dtype=torch.float64).bfloat16()
    if float(low) > size:
        return
    bits = low.view(torch.int16) + 1
    gap = bits.view(torch.bfloat16).double() - low.double()
    assert float(metrics.ulp(low.double())) == float(gap)


def test_rounding_constant_is_the_error_of_one_rounding() -> None:
    values = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    error = (values.bfloat16().float() - values).norm() / values.norm()
    assert float(error) == pytest.approx(metrics.ROUNDING[Precision.BF16], rel=0.02)
    third = values.double() / 3
    error32 = (third.float().double() - third).norm() / third.norm()
    assert float(error32) == pytest.approx(metrics.ROUNDING[Precision.FLOAT32], rel=0.1)


@given(st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=1))
def test_median_is_between_and_knows_infinity(values: list[float]) -> None:
    found = metrics.median(values)
    assert min(values) <= found <= max(values)
    assert sum(v <= found for v in values) >= len(values) / 2


def test_spread_tells_one_token_from_all() -> None:
    assert metrics.spread([1.0] * 8) == pytest.approx(1.0)
    one = [1e-6] * 8
    one[3] = 5.0
    assert metrics.spread(one) == pytest.approx(1 / 8, rel=1e-3)
    assert metrics.spread([0.0, math.inf]) == 0.5
    assert metrics.spread([0.0] * 3) == 1.0


def test_ratio_of_nothing() -> None:
    found = metrics.ratio(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 0.0, 4.0]))
    assert found.tolist() == [0.0, math.inf, 0.5]


@given(st.floats(0.001, 0.5), st.integers(0, 30))
def test_the_smallest_detectable_error_is_where_detection_begins(step: float, seed: int) -> None:
    """An orthogonal error just above the printed bound is found, one just below is not."""
    reference, baseline = noisy(seed=seed)
    noise_floor = toy.floor(reference, baseline)
    limits = replace(BF16_LIMITS, k_med=2.0, k_max=3.0, far_med=2.0, far_max=3.0)
    candidate = baseline[seed % 4]
    seen = toy.measure(candidate, noise_floor, limits)
    assert seen.smallest_local is not None
    room = torch.tensor([(9 - r * r) ** 0.5 for r in seen.ratios], dtype=torch.float64)
    token = int((room * noise_floor.noise / noise_floor.scale).argmax())
    for share, passes in ((1 - step, True), (1 + step, False)):
        off = candidate[token] - reference[token]
        error = torch.zeros_like(reference)
        draw = torch.randn(32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        draw -= (draw @ off) / (off @ off) * off
        error[token] = share * seen.smallest_local * noise_floor.scale[token] * draw / draw.norm()
        assert (judged(candidate + error, noise_floor, limits) == "match") is passes


ZEROS = (torch.zeros(1, 8).double(), torch.zeros(4, 1, 8).double())


def test_a_reference_of_zeros_needs_zeros() -> None:
    noise_floor = toy.floor(*ZEROS)
    assert judged(ZEROS[0], noise_floor) == "match"
    assert toy.measure(ZEROS[0], noise_floor, BF16_LIMITS).q_max == 0.0
    assert judged(ZEROS[0] + 1e-30, noise_floor) == "wrong"
    assert toy.measure(ZEROS[0] + 1e-30, noise_floor, BF16_LIMITS).q_max == math.inf
    # Not only constant logits.
    centred = toy.floor(*ZEROS, torch.ones(1).double(), centred=True)
    assert [judged(ZEROS[0] + off, centred) for off in (0.0, 1e-9)] == ["match", "wrong"]


def test_a_reference_of_zeros_is_scaled_by_the_clean_run() -> None:
    noise_floor = toy.floor(*ZEROS, torch.full((1,), 10.0, dtype=torch.float64))
    found = toy.measure(ZEROS[0] + 0.5 / math.sqrt(2), noise_floor, BF16_LIMITS)
    assert found.error == pytest.approx(0.1)
    assert found.q_max == pytest.approx(0.1 / metrics.ROUNDING[Precision.BF16])
    tiny = toy.measure(ZEROS[0] + 1e-9, noise_floor, BF16_LIMITS)
    assert tiny.q_max < 1 and not tiny.zero and not floor.within(tiny, BF16_LIMITS)


@pytest.mark.parametrize("precision", list(Precision))
def test_what_a_subtraction_leaves_of_a_row_is_a_rounding_of_the_row(precision: Precision) -> None:
    # A direction taken out of itself: 1e-8 in these baseline runs, and another 1e-8 in the next.
    limits = Thresholds().of(precision)
    there = torch.full((2,), 10.0, dtype=torch.float64)
    rounding = 10.0 * metrics.ROUNDING[precision]
    reference = torch.full((2, 4), 1e-3 * rounding, dtype=torch.float64)
    noise_floor = toy.floor(reference, reference.expand(4, 2, 4), there, precision=precision)
    assert judged(reference + rounding / 4, noise_floor, limits) == "match"
    # As much of it as a thousand roundings is no rounding.
    assert judged(reference + 1e3 * rounding, noise_floor, limits) != "match"


@pytest.mark.parametrize(("off", "expected"), [(20, "match"), (30, "drift"), (65, "wrong")])
def test_massive_dimensions_are_held_to_what_the_ensemble_shows(off: int, expected: str) -> None:
    reference, baseline = noisy()
    reference[0, 3] = 1000.0
    baseline[:, 0, 3] = torch.tensor([1004.0, 996.0, 1004.0, 996.0])  # one ulp of 4 each
    noise_floor = toy.floor(reference, baseline)
    candidate = baseline[0].clone()
    candidate[0, 3] = 1000 + off
    assert judged(candidate, noise_floor) == expected
    found = toy.measure(candidate, noise_floor, BF16_LIMITS)
    assert found.massive_ulps == pytest.approx(off / 4)


def test_a_few_per_cent_on_all_massive_dimensions_are_no_match() -> None:
    reference, baseline = noisy()
    reference[:, 3] = reference[:, 5] = 1000.0
    baseline[:, :, 3] = baseline[:, :, 5] = torch.tensor([[1003.0], [997.0]] * 2)
    candidate = baseline[0].clone()
    candidate[:, [3, 5]] *= 1.03
    assert judged(candidate, toy.floor(reference, baseline)) == "drift"


@pytest.mark.parametrize(
    ("precision", "noise", "off"), [(Precision.BF16, 0.02, 1.0), (Precision.FLOAT32, 2e-6, 3e-3)]
)
def test_the_likeliest_of_a_softmax_is_held_to_its_own_noise(precision, noise, off):
    logits = torch.randn(4, 97, generator=torch.Generator().manual_seed(0)).double()
    logits[:, 7] += 5

    def softmax(shift: float) -> torch.Tensor:
        moved = logits.clone()
        moved[:, 7] += shift
        return moved.softmax(dim=-1)

    baseline = torch.stack([softmax(shift * noise) for shift in (1, -1, 0.5, -0.7)])
    limits = Thresholds().of(precision)
    noise_floor = toy.floor(softmax(0), baseline, precision=precision, terms=64)
    assert judged(softmax(noise), noise_floor, limits) == "match"
    candidate = softmax(0)
    candidate[:, 7] *= 1 + off
    assert judged(candidate, noise_floor, limits) == "wrong"


def test_a_lucky_massive_element_is_allowed_what_the_others_show() -> None:
    reference, baseline = noisy()
    reference[0, 3] = reference[1, 3] = 1000.0
    baseline[:, 0, 3] = 1000.0
    baseline[:, 1, 3] = torch.tensor([1040.0, 960.0, 1040.0, 960.0])  # ten ulps each
    candidate = baseline[0].clone()
    candidate[0, 3] = 1000 + 80
    assert judged(candidate, toy.floor(reference, baseline)) == "match"
    assert judged(candidate[:1], toy.floor(reference[:1], baseline[:, :1])) != "match"


@pytest.mark.parametrize(("times", "expected"), [(1, "match"), (4, "drift"), (40, "wrong")])
def test_what_is_coarser_but_not_far_off_drifts(times: int, expected: str) -> None:
    reference, baseline = noisy()
    candidate = reference + times * (baseline[0] - reference)
    assert judged(candidate, toy.floor(reference, baseline)) == expected


@pytest.mark.parametrize("kind", ["row", "shift", "massive"])
def test_a_mixtures_row_may_differ_by_an_expert_in_bf16_and_not_in_float32(kind: str) -> None:
    """So may a row's single numbers, but not every row."""
    reference, baseline = noisy()
    if kind == "massive":
        reference[:, 3], baseline[:, :, 3] = 1000.0, torch.tensor([[1004.0], [996.0]] * 2)
    every = baseline[0].clone()
    if kind == "row":
        every = reference + 400 * (baseline[0] - reference)
    elif kind == "massive":
        every[:, 3] = 2000.0
    else:
        every += 50.0
    one = baseline[0].clone()
    one[2] = every[2]
    for precision, drifts in ((Precision.BF16, True), (Precision.FLOAT32, False)):
        more = {"centred": kind == "shift", "precision": precision, "mixture": True}
        noise_floor = toy.floor(reference, baseline, **more)
        assert floor.drifts(toy.measure(one, noise_floor, BF16_LIMITS)) is drifts
        assert judged(every, noise_floor) == "wrong"


def test_the_floor_of_float32_is_as_much_finer_as_its_rounding() -> None:
    reference, baseline = noisy()
    near = reference + (baseline - reference) * 2.0**-16
    fine = toy.floor(reference, near, precision=Precision.FLOAT32)
    coarse = toy.floor(reference, baseline)
    assert fine.noise.tolist() == pytest.approx((coarse.noise * 2.0**-16).tolist())


def test_a_single_row_is_judged_by_the_maximum() -> None:
    assert floor.median_limit(1, BF16_LIMITS) == BF16_LIMITS.k_max
    assert floor.median_limit(2, BF16_LIMITS) == BF16_LIMITS.k_med


def shifted(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """One row of logits whose baseline runs differ by a common shift above all."""
    reference, baseline = noisy(tokens=1, width=400, seed=seed)
    shift = torch.tensor([0.1, -0.2, 0.05, 0.3], dtype=torch.float64)
    return reference, baseline + shift[:, None, None]


def test_a_common_shift_of_logits_is_judged_apart() -> None:
    reference, baseline = shifted()
    noise_floor = toy.floor(reference, baseline, centred=True)
    assert toy.measure(baseline[3], noise_floor, BF16_LIMITS).q_max == pytest.approx(1.0, abs=0.1)
    far = toy.measure(baseline[3] + 2.6, noise_floor, BF16_LIMITS)
    assert far.q_max == pytest.approx(1.0, abs=0.1) and floor.within(far, BF16_LIMITS)
    assert toy.measure(baseline[3] + 3.0, noise_floor, BF16_LIMITS).shift > 1
    assert judged(baseline[3] + 3.0, noise_floor) == "wrong"


def test_without_the_shift_a_smaller_error_of_logits_is_found() -> None:
    reference, baseline = shifted()
    draw = torch.Generator().manual_seed(3)
    bad = baseline[0] + 0.04 * torch.randn(1, 400, generator=draw, dtype=torch.float64)
    assert judged(bad, toy.floor(reference, baseline, centred=True)) != "match"
    whole = toy.measure(bad, toy.floor(reference, baseline), BF16_LIMITS)
    assert whole.q_max < BF16_LIMITS.k_max

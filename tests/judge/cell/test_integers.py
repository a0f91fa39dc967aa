"""Integers that rounding flips are judged by what baseline runs flip, entry by entry and by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.integers import Runs, compare
from conformance.spec.records import Precision, Verdict

WIDTH = 64
FINE, COARSE = 1e-6, 1e-2
Made = Callable[[Tensor], Tensor]


def numbers(rows: int = 8, width: int = 512, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).double()


def noisy(values: Tensor, size: float, seed: int) -> Tensor:
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed)).double()
    return values + size * noise * values.square().mean().sqrt()


def runs(values: Tensor, make: Made) -> Runs:
    """What a trace makes of baseline values in float32 and bf16."""
    baseline = [make(noisy(values, FINE, 10 + seed)) for seed in range(3)]
    coarse = [make(noisy(values, COARSE, 20 + seed)) for seed in range(4)]
    return Runs(make(values), baseline, coarse, WIDTH)


def in_bf16(known: Runs) -> Runs:
    return Runs(known.reference, known.coarse, (), WIDTH)


def largest(values: Tensor) -> Tensor:
    return values.argmax(dim=-1)


def order(values: Tensor) -> Tensor:
    return values.argsort(dim=-1)


def positive(values: Tensor) -> Tensor:
    return values > 0


def quantised(values: Tensor) -> Tensor:
    return (100 * values).round().long()


MADE = [largest, order, positive, quantised]


def verdict(candidate: Tensor, known: Runs, precision: Precision = Precision.FLOAT32) -> Verdict:
    return compare(candidate, known, precision)[0]


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("rows", [8, 300])
def test_baseline_integers_pass_in_both_precisions(make: Made, rows: int) -> None:
    values = numbers(rows)
    known = runs(values, make)
    for seed in range(10):
        assert verdict(make(noisy(values, FINE, 100 + seed)), known).passes
        coarse = make(noisy(values, COARSE, 100 + seed))
        assert verdict(coarse, in_bf16(known), Precision.BF16).passes


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("precision", list(Precision))
def test_those_of_other_numbers_do_not(make: Made, precision: Precision) -> None:
    values = numbers(300)
    known = runs(values, make)
    known = known if precision is Precision.FLOAT32 else in_bf16(known)
    assert verdict(make(numbers(300, seed=5)), known, precision) is Verdict.WRONG


@pytest.mark.parametrize("precision", list(Precision))
def test_ids_each_one_too_high_are_no_rounded_numbers(precision: Precision) -> None:
    known = runs(numbers(300), largest)
    known = known if precision is Precision.FLOAT32 else in_bf16(known)
    assert verdict(known.reference + 1, known, precision) is Verdict.WRONG


def test_one_baseline_flip_lets_no_other_entry_be_anything() -> None:
    values = numbers(300)
    values[0].topk(2)
    first, second = values[0].topk(2).indices
    values[0, second] = values[0, first] * (1 - 1e-7)
    known = runs(values, largest)
    assert any(not torch.equal(run, known.reference) for run in known.baseline)
    flipped = known.reference.clone()
    flipped[0] = second
    assert verdict(flipped, known) is Verdict.MATCH
    flipped[7] = (flipped[7] + 100) % 512
    assert verdict(flipped, known) is Verdict.WRONG


def test_flips_of_bf16_are_too_many_for_float32() -> None:
    known = runs(numbers(300), positive)
    assert verdict(known.coarse[0], known) is Verdict.WRONG


def test_the_likeliest_stands_not_where_the_unlikeliest_should() -> None:
    known = runs(numbers(), order)
    swapped = known.reference.clone()
    swapped[3, [0, -1]] = swapped[3, [-1, 0]]
    assert verdict(swapped, known) is Verdict.WRONG
    near = known.reference.clone()
    near[3, [255, 256]] = near[3, [256, 255]]  # where ids are dense
    assert verdict(near, known) is Verdict.MATCH
    every = known.reference.reshape(8, -1, 2).flip(-1).reshape(8, -1)
    assert verdict(every, known) is Verdict.WRONG


@pytest.mark.parametrize("precision", list(Precision))
def test_a_whole_row_of_a_mask_is_not_inverted(precision: Precision) -> None:
    known = runs(numbers(300), positive)
    known = known if precision is Precision.FLOAT32 else in_bf16(known)
    mask = known.reference.clone()
    mask[5] ^= True
    assert verdict(mask, known, precision) is Verdict.WRONG


def test_rounded_numbers_may_be_neighbours_as_often_as_they_move() -> None:
    values = numbers()
    known = runs(values, quantised)
    assert verdict(quantised(noisy(values, 20 * FINE, 3)), known) is Verdict.MATCH
    assert verdict(quantised(noisy(values, 3000 * FINE, 3)), known) is Verdict.WRONG
    assert verdict(known.reference + 1, known) is Verdict.WRONG
    further = known.reference.clone()
    further[3, 7] += 2
    kind, words = compare(further, known, Precision.FLOAT32)
    assert kind is Verdict.WRONG and "where numbers were rounded" in words


def test_what_no_baseline_run_moves_may_not_move() -> None:
    ids = torch.arange(60).reshape(3, 20)
    known = Runs(ids, [ids, ids], [ids] * 4)
    other = ids.clone()
    other[0, 0] = 1
    for precision in Precision:
        kind, words = compare(other, known, precision)
        assert kind is Verdict.WRONG
        assert words.startswith("1 of 60 integers differ, the first at [0, 0]")
    kind, words = compare(torch.tensor(3), Runs(torch.tensor(4), [torch.tensor(4)]), Precision.BF16)
    assert (kind, words) == (Verdict.WRONG, "1 of 1 integers differ, the first at []")
    assert compare(ids, known, Precision.FLOAT32) == (Verdict.EXACT, "")


@pytest.mark.parametrize(
    ("mine", "verdict_of"),
    [(range(4), "match"), (range(12), "match"), (range(26), "drift"), (range(60), "wrong")],
)
def test_in_bf16_three_times_the_baseline_flips_drift(mine: Sequence[int], verdict_of: str) -> None:
    ids = torch.arange(60)

    def flipped(places: Sequence[int]) -> Tensor:
        other = ids.clone()
        other[list(places)] += 1
        return other

    baseline = [flipped(range(4)), flipped(range(2, 7))]
    assert verdict(flipped(mine), Runs(ids, baseline), Precision.BF16) == verdict_of


def test_where_baseline_runs_order_the_same_ids_otherwise_no_others_may_be_there() -> None:
    reference = torch.tensor([10, 20, 40, 41, 50])
    baseline = [reference, torch.tensor([10, 20, 41, 40, 50])]
    swapped, other = torch.tensor([10, 20, 40, 50, 41]), torch.tensor([10, 20, 41, 40, 7])
    assert verdict(swapped, Runs(reference, baseline), Precision.BF16) is Verdict.MATCH
    kind, words = compare(other, Runs(reference, baseline), Precision.BF16)
    assert kind is Verdict.WRONG and words.endswith("order the same ones otherwise, and not others")
    at_the_end = torch.tensor([10, 20, 40, 41, 60])
    assert verdict(at_the_end, Runs(reference, baseline), Precision.BF16) is Verdict.WRONG
    baseline.append(torch.tensor([10, 20, 40, 41, 60]))
    assert verdict(at_the_end, Runs(reference, baseline), Precision.BF16) is Verdict.MATCH

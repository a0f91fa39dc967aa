"""Integers that rounding flips are judged by what honest runs flip, and by what chance lets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance.judge import integers
from conformance.records import Precision, Verdict

TRUTH = torch.arange(60).reshape(3, 20)


def flipped(number: int) -> Tensor:
    ids = TRUTH.clone()
    ids.view(-1)[:number] += 1
    return ids


@pytest.mark.parametrize(
    ("mine", "honest", "verdict"),
    [
        (0, (3, 0), Verdict.EXACT),
        (1, (0, 0), Verdict.WRONG),
        (1, (2, 0), Verdict.MATCH),
        (6, (4, 5), Verdict.MATCH),
        (13, (4, 5), Verdict.MATCH),
        (14, (4, 5), Verdict.DRIFT),
        (60, (4, 5), Verdict.DRIFT),
    ],
)
def test_in_bf16_as_many_flip_as_in_honest_runs(
    mine: int, honest: tuple[int, ...], verdict: Verdict
) -> None:
    ways = [flipped(number) for number in honest]
    kind, words = integers.compare(flipped(mine), TRUTH, ways, Precision.BF16)
    assert kind is verdict
    if verdict in {Verdict.MATCH, Verdict.DRIFT}:
        assert words == (
            f"{mine} of 60 integers differ, the first at [0, 0]; "
            f"up to {max(honest)} in transformers' own bf16 runs"
        )


def test_in_float32_none_may_flip_where_no_honest_run_does() -> None:
    kind, words = integers.compare(flipped(1), TRUTH, [flipped(0)], Precision.FLOAT32)
    assert (kind, words) == (Verdict.WRONG, "1 of 60 integers differ, the first at [0, 0]")


def test_in_float32_a_hundred_times_as_many_flip_as_the_noise_may_be_as_large() -> None:
    truth = torch.randint(0, 50_000, (4, 1000), generator=torch.Generator().manual_seed(0))

    def other(count: int) -> Tensor:
        ids = truth.clone()
        ids.view(-1)[:count] += 700
        return ids

    ways = [other(1), other(0)]
    kind, words = integers.compare(other(140), truth, ways, Precision.FLOAT32)
    assert kind is Verdict.MATCH and words.endswith("up to 1 in transformers' own float32 runs")
    assert integers.compare(other(141), truth, ways, Precision.FLOAT32)[0] is Verdict.WRONG


QUANTISED = (1000 * torch.randn(16, 256, generator=torch.Generator().manual_seed(0))).int()


def neighbours(count: int, truth: Tensor = QUANTISED) -> Tensor:
    """So many entries are one off, all over the tensor."""
    values = truth.clone()
    where = torch.randperm(values.numel(), generator=torch.Generator().manual_seed(1))[:count]
    values.view(-1)[where] = values.view(-1)[where] + 1
    return values


@pytest.mark.parametrize(("count", "verdict"), [(1, "match"), (400, "match"), (700, "wrong")])
def test_in_float32_numbers_that_were_rounded_may_be_neighbours(count: int, verdict: str) -> None:
    """A tenth of a part in ten thousand of a thousand: 410 of 4,096 on the average."""
    kind, _ = integers.compare(neighbours(count), QUANTISED, [QUANTISED], Precision.FLOAT32)
    assert kind == verdict
    further = QUANTISED.clone()
    further[3, 7] += 2
    found = integers.compare(further, QUANTISED, [QUANTISED], Precision.FLOAT32)
    assert found[0] is Verdict.WRONG


@pytest.mark.parametrize(("width", "places"), [(512, 1), (20_000, 4)])
def test_in_float32_many_ids_in_an_order_may_change_places(width: int, places: int) -> None:
    order = torch.randperm(width, generator=torch.Generator().manual_seed(0))[None]

    def moved(by: int) -> Tensor:
        ids = order.clone()
        ids[0, [9, 9 + by]] = order[0, [9 + by, 9]]
        return ids

    assert integers.compare(moved(places), order, [order], Precision.FLOAT32)[0] is Verdict.MATCH
    further = integers.compare(moved(places + 1), order, [order], Precision.FLOAT32)
    assert further[0] is Verdict.WRONG
    other = order.clone()
    other[0, 9] = width
    assert integers.compare(other, order, [order], Precision.FLOAT32)[0] is Verdict.WRONG


def test_few_integers_may_be_ids_and_no_neighbours() -> None:
    ids = torch.arange(100, 100 + integers.MANY - 1)
    assert integers.compare(neighbours(1, ids), ids, [ids], Precision.FLOAT32)[0] is Verdict.WRONG


def test_of_many_signs_one_may_flip_in_float32() -> None:
    mask = QUANTISED > 0
    few = mask.clone()
    few.view(-1)[:2] ^= True
    assert integers.compare(few, mask, [mask], Precision.FLOAT32)[0] is Verdict.MATCH
    few.view(-1)[:12] ^= True
    assert integers.compare(few, mask, [mask], Precision.FLOAT32)[0] is Verdict.WRONG


def test_one_id_alone_has_no_place() -> None:
    mine, truth = torch.tensor(3), torch.tensor(4)
    kind, words = integers.compare(mine, truth, [truth], Precision.BF16)
    assert (kind, words) == (Verdict.WRONG, "1 of 1 integers differ, the first at []")


def test_where_honest_runs_order_the_same_ids_otherwise_no_others_may_be_there() -> None:
    truth = torch.tensor([10, 20, 40, 41, 50])
    honest = [truth, torch.tensor([10, 20, 41, 40, 50])]
    swapped, other = torch.tensor([10, 20, 40, 50, 41]), torch.tensor([10, 20, 41, 40, 7])
    assert integers.compare(swapped, truth, honest, Precision.BF16)[0] is Verdict.MATCH
    kind, words = integers.compare(other, truth, honest, Precision.BF16)
    assert kind is Verdict.WRONG and words.endswith("order the same ones otherwise, and not others")
    at_the_end = torch.tensor([10, 20, 40, 41, 60])
    assert integers.compare(at_the_end, truth, honest, Precision.BF16)[0] is Verdict.WRONG
    honest.append(torch.tensor([10, 20, 40, 41, 60]))
    assert integers.compare(at_the_end, truth, honest, Precision.BF16)[0] is Verdict.MATCH

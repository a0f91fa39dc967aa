"""Ids that rounding flips are judged by what honest bf16 runs flip; in float32 none may."""

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


def test_in_float32_none_may_flip() -> None:
    kind, words = integers.compare(flipped(1), TRUTH, [flipped(9)], Precision.FLOAT32)
    assert (kind, words) == (Verdict.WRONG, "1 of 60 integers differ, the first at [0, 0]")


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

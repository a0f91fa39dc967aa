"""Ids of the largest numbers are weighed by the numbers beside them, as greedy ids are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.judge_cell import Judgement
from conformance.judge.cell.measures import rankings
from conformance.spec.records import BF16_LIMITS, Precision, Verdict
from tests.judge.cell import toy

COUNT = 6


def made(seed: int = 0, runs: int = 5) -> tuple[Tensor, list[Tensor]]:
    """Logits of which ids 40 and 41 are nearly equal at ranks 2 and 3, and bf16 baseline runs."""
    maker = torch.Generator().manual_seed(seed)
    reference = torch.randn(97, generator=maker)
    reference[[10, 20, 40, 41, 50, 60]] = torch.tensor([9.0, 8.0, 7.0, 6.999, 5.0, 4.0])
    noise = 0.01 * torch.randn(runs, 97, generator=maker)
    noise[:, 40], noise[:, 41] = 0.01, -0.03  # no baseline run has the two in the other order
    return reference, [run.bfloat16() for run in reference + noise]


def judged(
    mine: Tensor,
    ids: Sequence[int] | Tensor,
    *,
    beside: str = "logits_of",
    precision: Precision = Precision.BF16,
) -> Judgement:
    """Ids with the logits or the values that `topk` gives, against the baseline runs."""
    reference_values, baseline = made()

    def both(run: Tensor, chosen: Tensor | None = None) -> dict[str, Tensor]:
        top = run.float().topk(COUNT, sorted=True)
        number = top.values.to(run.dtype) if beside == "values" else run
        found = {"p0/s0/ids_of": top.indices if chosen is None else chosen}
        return found | ({f"p0/s0/{beside}": number} if beside else {})

    bf16 = precision is Precision.BF16
    begin = "" if bf16 else "float32_"
    dtype = torch.bfloat16 if bf16 else torch.float32
    reference = {"truth": both(reference_values)} | {
        f"{begin}{n}": both(one if bf16 else reference_values) for n, one in enumerate(baseline)
    }
    candidate = both(mine.to(dtype), torch.as_tensor(ids))
    return toy.judge(candidate, reference, precision=precision, alone=False)


def ids_of(judgement: Judgement) -> tuple[Verdict, str]:
    [one] = [one for one in judgement.observations if "ids_of" in one.site]
    return one.verdict, one.message


SWAPPED = [10, 20, 41, 40, 50, 60]


@pytest.mark.parametrize("beside", ["logits_of", "values"])
def test_nearly_equal_numbers_may_be_in_another_order(beside: str) -> None:
    reference, _ = made()
    judgement = judged(reference, SWAPPED, beside=beside)
    verdict, words = ids_of(judgement)
    assert verdict is Verdict.MATCH and judgement.verdict.passes
    assert words.startswith("2 of 6 integers differ, the first at [2]; ")
    assert f"whose {beside} is 0.001 apart, noise of the pair 0.0" in words


@pytest.mark.parametrize("beside", ["logits_of", "values"])
@pytest.mark.parametrize(
    "wrong",
    [
        [20, 10, 40, 41, 50, 60],  # far apart
        [10, 20, 41, 40, 60, 50],  # a fair swap beside an unfair one
        [60, 50, 41, 40, 20, 10],
        [10, 20, 41, 41, 50, 60],  # other ids
        [10, 20, 41, 40, 50, 5],
        [0] * 6,
    ],
)
def test_other_ids_or_an_order_of_numbers_that_are_far_apart_are_wrong(wrong, beside):
    reference, _ = made()
    judgement = judged(reference, wrong, beside=beside)
    assert ids_of(judgement)[0] is Verdict.WRONG and not judgement.verdict.passes


def test_without_numbers_what_no_baseline_run_flips_is_wrong() -> None:
    reference, _ = made()
    assert ids_of(judged(reference, SWAPPED, beside=""))[0] is Verdict.WRONG


def test_in_float32_no_order_is_another() -> None:
    reference, _ = made()
    judgement = judged(reference, SWAPPED, precision=Precision.FLOAT32)
    verdict, words = ids_of(judgement)
    assert verdict is Verdict.WRONG and "41 stands for 40" in words


def test_numbers_that_the_ids_are_not_the_largest_of_say_nothing() -> None:
    reference, baseline = made()
    other = torch.randn(97, generator=torch.Generator().manual_seed(9))
    ids = [run.float().topk(COUNT).indices for run in (reference, *baseline)]
    mine = torch.tensor(SWAPPED)
    assert rankings.numbers_of(mine, ids, [other] * 6) is None
    assert rankings.numbers_of(mine, ids, [reference, *baseline[:4], other]) is None
    assert rankings.numbers_of(mine, ids, [reference, *baseline]) is not None
    chance = [torch.tensor([5, 7])] * 5  # two numbers go down by chance
    assert rankings.numbers_of(chance[0], chance, [torch.tensor([2.0, 1.0])] * 5) is None


def test_one_id_of_each_row_is_a_ranking_too() -> None:
    maker = torch.Generator().manual_seed(3)
    reference = torch.randn(4, 97, generator=maker)
    baseline = [reference + 0.01 * torch.randn(4, 97, generator=maker) for _ in range(5)]
    ids = [run.argmax(-1) for run in (reference, *baseline)]
    second = reference.topk(2).indices[:, 1]
    for row in range(4):
        mine = torch.where(torch.arange(4) == row, second, ids[0])
        found = rankings.numbers_of(mine, ids, [reference, *baseline])
        assert found is not None and found.whole
        worst = rankings.weigh(mine, ids[0], found, BF16_LIMITS, Precision.BF16)
        assert worst is not None
        assert (worst.chosen, worst.meant) == (int(second[row]), int(ids[0][row]))

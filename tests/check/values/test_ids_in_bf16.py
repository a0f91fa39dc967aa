"""Ids that float32 agrees on: in bf16 rounding's, unless numbers beside them show otherwise."""

from __future__ import annotations

import pytest
import torch

from conformance.check.values import compare
from conformance.records import Precision, Verdict

IDS = ((1, 2, 3),)
TOP = 5


def compared(mine: list[int], *, beside: bool) -> compare.Compared:
    """Five ids, of which 40 and 41 are nearly equal, with or without the logits."""
    maker = torch.Generator().manual_seed(1)
    reference_values = torch.randn(97, generator=maker)
    reference_values[[10, 20, 40, 41, 50]] = torch.tensor([9.0, 8.0, 7.0, 6.999, 5.0])
    noise = 0.01 * torch.randn(5, 97, generator=maker)
    noise[:, 40], noise[:, 41] = 0.01, -0.03
    runs = {"truth": reference_values} | {
        str(n): (reference_values + one).bfloat16() for n, one in enumerate(noise)
    }

    def values(logits: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"p0/s0/ids": ids} | ({"p0/s0/logits": logits} if beside else {})

    reference = {way: values(run, run.float().topk(TOP).indices) for way, run in runs.items()}
    own = values(runs["0"], torch.tensor(mine))
    return compare.compare(own, compare.build_reference(reference, Precision.BF16), (IDS, IDS))


@pytest.mark.parametrize(
    ("mine", "beside", "passes", "numerics"),
    [
        ([10, 20, 41, 40, 50], True, True, True),
        ([20, 10, 40, 41, 50], True, False, False),
        ([10, 20, 40, 41, 7], True, False, False),
        ([10, 20, 41, 40, 50], False, False, True),  # nothing shows that the two are near
    ],
)
def test_another_order_is_judged_by_the_numbers_beside_it(
    mine: list[int], beside: bool, passes: bool, numerics: bool
) -> None:
    found = compared(mine, beside=beside)
    assert found.passes is passes
    assert compare.numerics_only(found.judgement) is numerics
    [ids] = [one for one in found.judgement.observations if "ids" in one.site]
    assert ids.verdict is (Verdict.MATCH if passes else Verdict.WRONG)

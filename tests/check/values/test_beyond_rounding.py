"""In float32 a value of many numbers is the same up to rounding alone; see `compare.ROUNDING`."""

import pytest
import torch

from conformance.check.values import compare
from conformance.generated_tokens import FLOAT32_WAY
from conformance.records import Precision, Verdict

IDS = [[1, 2, 3]]
VALUE = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))


def judged(times: float) -> compare.Compared:
    """The judgement on a value that is so many times as far off as baseline runs are."""
    noise = 1e-5 * torch.randn(3, 64, generator=torch.Generator().manual_seed(4))
    members = {
        "truth": {"p0/s0/h": VALUE},
        f"{FLOAT32_WAY}a": {"p0/s0/h": VALUE + noise.roll(1, 0)},
        f"{FLOAT32_WAY}b": {"p0/s0/h": VALUE + noise.roll(2, 0)},
    }
    reference = compare.build_reference(members, Precision.FLOAT32)
    return compare.compare({"p0/s0/h": VALUE + times * noise}, reference, (IDS, IDS))


@pytest.mark.parametrize(("times", "verdict"), [(3.0, Verdict.MATCH), (80.0, Verdict.WRONG)])
def test_what_is_further_off_than_rounding_explains_is_not_the_same(times, verdict):
    found = judged(times)
    assert found.judgement.verdict is verdict
    assert found.passes is (verdict is Verdict.MATCH)
    [value] = found.judgement.observations
    assert value.verdict is verdict
    if not found.passes:
        assert "× noise off, where engines that compute the same are within 30" in value.message
        assert found.judgement.reason.startswith("1 of 1 values are off")

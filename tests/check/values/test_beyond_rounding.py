"""In float32 a value of many numbers is the same up to rounding alone; see `compare.ROUNDING`."""

import pytest
import torch

from conformance.check.values import compare
from conformance.records import Precision, Thresholds, Verdict

IDS = [[1, 2, 3]]
VALUE = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))


def judged(times: float, precision: Precision, rows: int = 64) -> compare.Compared:
    """The judgement on a value that is so many times off as honest runs are."""
    noise = torch.randn(3, 64, generator=torch.Generator().manual_seed(4))[:, :rows]
    truth = VALUE[:, :rows]
    size = 2.0**-8 if precision is Precision.BF16 else 2.0**-24
    members = {
        "truth": {"p0/s0/h": truth},
        "a": {"p0/s0/h": truth + size * noise.roll(1, 0)},
        "b": {"p0/s0/h": truth + size * noise.roll(2, 0)},
    }
    read = compare.read_truth(members, precision)
    mine = {"p0/s0/h": truth + times * size * noise}
    return compare.compare(mine, read, (IDS, IDS), Thresholds())


@pytest.mark.parametrize(("times", "verdict"), [(3.0, Verdict.MATCH), (80.0, Verdict.WRONG)])
def test_what_is_further_off_than_rounding_explains_is_not_the_same(times, verdict):
    found = judged(times, Precision.FLOAT32)
    assert found.judgement.verdict is verdict
    assert found.passes is (verdict is Verdict.MATCH)
    [value] = found.judgement.observations
    assert value.verdict is verdict
    if not found.passes:
        assert "× noise off, where engines that compute the same are within 30" in value.message
        assert found.judgement.reason.startswith("1 of 1 values are off")

"""What a request leaves in an engine's caches and is no number does not reach a later cell."""

from types import SimpleNamespace

import pytest
import torch

from conformance.engines.vllm.inside.worker_rpc import clear_caches


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_becomes_zero_and_the_rest_stays(value: float) -> None:
    spoiled = torch.ones(2, 4, 8, dtype=torch.bfloat16)
    spoiled[1, 2, 3] = value
    states = [torch.full((3,), value), torch.arange(3.0)]
    clear_caches(SimpleNamespace(kv_caches=[spoiled, states]))
    assert spoiled.sum() == 2 * 4 * 8 - 1 and spoiled[1, 2, 3] == 0
    assert states[0].tolist() == [0, 0, 0] and states[1].tolist() == [0, 1, 2]


def test_caches_of_finite_numbers_and_of_bytes_are_left_as_they_are() -> None:
    numbers, packed = torch.tensor([1.5, -2.0]), torch.tensor([255, 0], dtype=torch.uint8)
    clear_caches(SimpleNamespace(kv_caches=[numbers, packed]))
    assert numbers.tolist() == [1.5, -2.0] and packed.tolist() == [255, 0]
    clear_caches(SimpleNamespace())

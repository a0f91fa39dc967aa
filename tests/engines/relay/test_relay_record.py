"""Messages between stages survive the way, whatever is in them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nnsight.intervention.source import NO_SKIP

from conformance.engines.vllm.relay.record import (
    LocationNumbers,
    Reader,
    RelayMessage,
    ServedValue,
    Unsendable,
    Visits,
    decode,
    digest,
    encode,
    pack,
    unpack,
)

DTYPES = [torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool]


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=5
    )
)
def test_tensors_come_back_bit_by_bit(descriptions):
    values = [(torch.randn(shape) * 3).to(dtype) for dtype, shape in descriptions]
    back = decode(encode(values))
    assert [(v.dtype, v.shape) for v in back] == [(v.dtype, v.shape) for v in values]
    assert all(torch.equal(a, b) for a, b in zip(values, back, strict=True))


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.ones(1, 8)[:, -1],
        torch.ones(4, 8)[:1, 2],
        torch.ones(0, 8)[:, 2],
    ],
)
def test_a_tensor_is_sent_whatever_its_strides_are(value):
    assert torch.equal(decode(encode(value)), value)
    assert digest(value) == digest(value.clone(memory_format=torch.contiguous_format))


def test_the_skip_mark_stays_itself_and_modules_travel_by_path():
    here, there = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    data = encode({"m": here, "skip": NO_SKIP}, {id(here): "Module:a.b"})
    back = decode(data, {"Module:a.b": there})
    assert back["m"] is there
    assert back["skip"] is NO_SKIP


def message(*locations: str, **served) -> RelayMessage:
    visits = Visits(0, list(locations), len(locations) - 1)
    visits.served.update({int(k[1:]): v for k, v in served.items()})
    return RelayMessage(3, (visits,), {"r": {"message": "no"}})


def test_locations_are_sent_once():
    names, theirs = LocationNumbers(), LocationNumbers()
    locations = [f"layers.{i}.output" for i in range(50)]
    sent = message(*locations, _1=ServedValue(torch.ones(2), (Reader(0, None),)))
    first, second = pack(sent, names, {}), pack(sent, names, {})
    assert second.head.numel() < first.head.numel() / 3
    for data in (first, second):
        got = unpack(data, theirs, {})
        assert got.visits[0].locations == locations
        assert got.visits[0].boundary == 49
        assert torch.equal(got.visits[0].served[1].value, torch.ones(2))
        assert got.errors == {"r": {"message": "no"}}


def test_a_value_that_cannot_be_pickled_is_named_and_the_rest_arrives():
    served = {
        "_0": ServedValue(lambda: 0, (Reader(0, None),)),
        "_1": ServedValue(torch.ones(1), ()),
    }
    sent = pack(message("a", "b", "c", **served), LocationNumbers(), {})
    got = unpack(sent, LocationNumbers(), {})
    assert got.visits[0].served[0].value == Unsendable("function")
    assert torch.equal(got.visits[0].served[1].value, torch.ones(1))


def test_digests_are_of_bits():
    assert digest(torch.tensor([float("nan")])) == digest(torch.tensor([float("nan")]))
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, dtype=torch.float64)[:1])
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))

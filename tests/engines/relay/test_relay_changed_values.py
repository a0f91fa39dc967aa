"""What blocks left of values, compared when a step is over; what they saved, sent home."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from nnsight.modeling.vllm.batching import VLLMBatcher

from conformance.engines.vllm.relay import changed_values as module
from conformance.engines.vllm.relay import replay
from conformance.engines.vllm.relay.changed_values import ended_visit, readers
from conformance.engines.vllm.relay.record import Reader, digest, snapshot
from conformance.engines.vllm.relay.saved_values import dumps

#: Two requests: two rows and three.
GROUPS = {0: [0, 2], 1: [2, 3]}


@pytest.fixture(params=[False, True], ids=["at once", "later"])
def moment(request, monkeypatch):
    """As on a CPU, and as on a GPU, where copies are compared together."""
    for each in (module, replay):
        monkeypatch.setattr(each, "later", lambda _: request.param)
    return request.param


def batcher():
    made = VLLMBatcher(None)
    made.total = 2  # by then one row a request
    return made


def visited(*edits):
    """Visits of five rows, each with what `edits` does to its value in place."""
    found = []
    for edit in edits:
        value = (torch.randn(5, 4), torch.randn(5, 4).bfloat16())
        before = snapshot(value)
        edit(value)
        found.append((before, value, ended_visit(GROUPS, 5, before, value)))
    return found


def nothing(value):
    pass


def second_request(value):
    value[1][3] += 1


def test_only_rows_that_were_edited_have_a_digest(moment):
    found = visited(nothing, second_request, nothing)
    none, one, again = readers([visit for *_, visit in found], batcher())
    assert [reader.digest for reader in (*none, *again)] == [None] * 4
    assert [reader.row for reader in one] == [0, 1]
    assert one[0].digest is None
    _, value, _ = found[1]
    assert one[1].digest == digest(tuple(part[2:] for part in value))


def test_a_value_of_another_shape_is_an_edit(moment):
    before = (torch.zeros(5, 4),)
    (found,) = readers([ended_visit(GROUPS, 5, before, (torch.zeros(5, 3),))], batcher())
    assert all(reader.digest is not None for reader in found)


def test_what_a_kernel_writes_afterwards_is_no_edit(monkeypatch):
    monkeypatch.setattr(module, "later", lambda _: True)
    ((_, value, visit),) = visited(nothing)
    value[0].zero_()
    (found,) = readers([visit], batcher())
    assert [reader.digest for reader in found] == [None, None]


def test_what_was_saved_comes_home_as_it_was():
    shared = torch.arange(6).reshape(2, 3)
    value = {
        "rows": [shared[1], torch.randn(2, 2).bfloat16(), torch.tensor(3.0), torch.zeros(0, 4)],
        "twice": shared,
        "again": shared,
        "other": torch.nn.Parameter(torch.ones(2)),
        "object": SimpleNamespace(inside=torch.ones(3, dtype=torch.bool)),
    }
    back = pickle.loads(dumps(value))
    assert back["twice"] is back["again"]
    assert isinstance(back["other"], torch.nn.Parameter)
    assert torch.equal(back["object"].inside, value["object"].inside)
    for one, other in zip(back["rows"], value["rows"], strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    assert back["rows"][0].untyped_storage().nbytes() == 3 * 8


def test_what_a_block_writes_later_to_what_it_was_given_is_no_edit_of_that_visit(moment):
    errors = {}
    compared = replay._Compared(errors, owner=0, batcher=batcher())
    ((_, value, visit),) = visited(nothing)
    owners = tuple(Reader(row, None) for row in GROUPS)
    if moment:  # a copy, on a GPU
        visit = replace(visit, after=snapshot(value))
    compared.add("layers.0.output", owners, visit)
    value[0].zero_()
    compared.end()
    assert errors == {}


def test_another_edit_than_the_owners_is_an_error(moment):
    errors = {}
    compared = replay._Compared(errors, owner=0, batcher=batcher())
    ((_, _, visit),) = visited(second_request)
    compared.add("layers.0.output", tuple(Reader(row, None) for row in GROUPS), visit)
    compared.end()
    assert list(errors) == [1]

"""Messages between stages: any length, at once, in order, and none left unnoticed."""

from __future__ import annotations

import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.engines.relay.record import decode, encode
from conformance.engines.relay.transport import INLINE, Column


def column_pair() -> tuple[Column, Column]:
    """Stage 0 and stage 1, connected as after a load."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first, last = Column.__new__(Column), Column.__new__(Column)
    first.stage, last.stage = 0, 1
    first._peers, last._peers = {1: ends[0]}, {0: ends[1]}
    return first, last


@given(st.lists(st.sampled_from([1, 7, INLINE - 1, INLINE, INLINE + 1, 3_000_000]), max_size=4))
def test_messages_arrive_whole_and_in_order(sizes: list[int]) -> None:
    first, last = column_pair()
    sent = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    for data in sent:
        last.send(0, data)
    for data in sent:
        assert last.unsent > 0
        assert torch.equal(first.receive(1), data)
    assert last.unsent == first.unsent == 0


def test_tensors_in_a_long_message_are_where_they_were_put() -> None:
    first, last = column_pair()
    values = {"a": torch.randn(300, 100), "b": [torch.arange(5), torch.zeros(3).bfloat16()]}
    last.send(0, encode(values))
    found = decode(first.receive(1))
    assert torch.equal(found["a"], values["a"])
    assert torch.equal(found["b"][0], values["b"][0])
    assert found["b"][1].dtype == torch.bfloat16


def test_a_receiver_does_not_wait_for_a_stage_that_has_ended() -> None:
    first, last = column_pair()
    last._peers[0].close()
    with pytest.raises(EOFError, match="stage 1 has ended"):
        first.receive(1)

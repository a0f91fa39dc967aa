"""Messages between stages: any length, at once, in order, and none left unnoticed."""

from __future__ import annotations

import socket
from threading import Barrier, Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.engines.vllm.relay.record import decode, encode
from conformance.engines.vllm.relay.transport import INLINE, Column


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


def test_a_stage_sleeps_until_the_one_before_has_rung_for_its_step() -> None:
    first, last = column_pair()
    woken: list[int] = []

    def wait(step: int) -> None:
        last.wait(0, step)
        woken.append(step)

    first.ring(1, 1)  # of a step that the later stage never began
    sleeper = Thread(target=wait, args=(2,))
    sleeper.start()
    sleeper.join(0.2)
    assert not woken
    first.ring(1, 2)
    sleeper.join(10)
    assert woken == [2]
    assert first.unsent == last.unsent == 0


def test_a_stage_does_not_sleep_when_the_one_before_has_ended() -> None:
    first, last = column_pair()
    first._peers[1].close()
    with pytest.raises(EOFError, match="stage 0 has ended"):
        last.wait(0, 1)


@given(st.integers(2, 5))
def test_each_stage_is_connected_to_its_neighbours_and_to_the_last(stages: int) -> None:
    columns = [Column.__new__(Column) for _ in range(stages)]
    everybody = Barrier(stages)
    places: dict[int, object] = {}

    def connect(stage: int) -> None:
        column = columns[stage]
        column.stage, column.ranks = stage, list(range(stages))

        def gather(obj: object) -> list[object]:
            places[stage] = obj
            everybody.wait(10)
            return [places[s] for s in range(stages)]

        column.gather = gather  # type: ignore[method-assign]
        column._peers = column._connect(10)

    threads = [Thread(target=connect, args=(stage,)) for stage in range(stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stage, column in enumerate(columns):
        assert set(column._peers) == {stage - 1, stage + 1, stages - 1} - {-1, stages, stage} | (
            set(range(stages - 1)) if stage == stages - 1 else set()
        )
        if stage < stages - 1:
            column.ring(stage + 1, 7)
    for stage, column in enumerate(columns[1:], 1):
        column.wait(stage - 1, 7)
    columns[-1].send(0, torch.ones(3, dtype=torch.uint8))
    assert columns[0].receive(stages - 1).tolist() == [1, 1, 1]
    for column in columns:
        for peer in column._peers.values():
            peer.close()

"""Messages between stages: any length, at once, in order, and none left unnoticed."""

from __future__ import annotations

import secrets
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.engines.vllm.relay import transport
from conformance.engines.vllm.relay.transport import INLINE, RankPipeline


def column_pair() -> tuple[RankPipeline, RankPipeline]:
    """Stage 0 and stage 1, connected as after a load."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first, last = RankPipeline.__new__(RankPipeline), RankPipeline.__new__(RankPipeline)
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


def test_nobody_waits_for_a_stage_that_has_ended() -> None:
    first, last = column_pair()
    last._peers[0].close()
    with pytest.raises(EOFError, match="stage 1 has ended"):
        first.receive(1)
    first, last = column_pair()
    first._peers[1].close()
    with pytest.raises(EOFError, match="stage 0 has ended"):
        last.wait(0, 1)


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


@given(st.integers(2, 5))
def test_each_stage_is_connected_to_its_neighbours_and_to_the_last(stages: int) -> None:
    columns = [RankPipeline.__new__(RankPipeline) for _ in range(stages)]
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

    with ThreadPoolExecutor(stages) as threads:
        list(threads.map(connect, range(stages)))
    last = stages - 1
    for stage, column in enumerate(columns):
        neighbours = {stage - 1, stage + 1, last} if stage < last else set(range(last))
        assert set(column._peers) == neighbours - {-1, stage}
        if stage < last:
            column.ring(stage + 1, 7)
    for stage, column in enumerate(columns[1:], 1):
        column.wait(stage - 1, 7)
    columns[-1].send(0, torch.ones(3, dtype=torch.uint8))
    assert columns[0].receive(last).tolist() == [1, 1, 1]
    for column in columns:
        for peer in column._peers.values():
            peer.close()


# --- who connects while an engine loads --------------------------------------------------

SECRET = secrets.token_bytes(32)


def stage(number: int) -> bytes:
    return struct.pack("<Q", number)


def accepted(*calls: bytes, wanted: frozenset[int] = frozenset({1})) -> dict[int, socket.socket]:
    """Whom a stage takes of those who call with these words, one after the other."""
    name = f"\0test-{secrets.token_hex(8)}"
    callers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen(len(calls))
        listener.settimeout(1)
        for words in calls:
            caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            caller.connect(name)
            if words:
                caller.send(words)
            callers.append(caller)
        return transport._accepted(listener, SECRET, set(wanted))


@pytest.mark.parametrize(
    "stranger",
    [
        b"",
        b".",
        stage(1),
        stage(1) + secrets.token_bytes(32),
        stage(1) + SECRET[:-1],
        stage(1) + SECRET + b".",
        stage(7) + SECRET,
        stage(2**64 - 1) + SECRET,
    ],
    ids=["nothing", "a byte", "no secret", "other", "short", "long", "far stage", "no stage"],
)
def test_a_stranger_is_turned_away_and_loading_goes_on(
    stranger: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_INTRODUCTION", 0.05)
    peers = accepted(stranger, stage(1) + SECRET)
    assert set(peers) == {1}
    with pytest.raises(TimeoutError):
        accepted(stranger)


def test_a_stage_is_taken_once() -> None:
    assert set(accepted(*[stage(1) + SECRET] * 2, stage(2) + SECRET, wanted={1, 2})) == {1, 2}


def test_another_user_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    its.send(stage(1) + SECRET)
    assert transport._introduced(ours, SECRET) == 1
    its.send(stage(1) + SECRET)
    monkeypatch.setattr(transport.os, "getuid", lambda: 12345)
    assert transport._introduced(ours, SECRET) == -1
    assert len(ours.recv(100)) == 40, "it was read"


def test_a_message_of_another_length_than_announced_is_refused() -> None:
    first, last = column_pair()
    last._peers[0].send(struct.pack("<Q", 1 << 40) + b"...")
    with pytest.raises(ValueError, match="sent 3 bytes and announced"):
        first.receive(1)

"""Many requests at once: the whole of it is bench/load.py."""

from __future__ import annotations

import asyncio
import math
import mmap
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

load = pytest.importorskip("bench.load", reason="no engines")
soak = pytest.importorskip("bench.soak", reason="no engines")

ROOT = Path(__file__).resolve().parents[2]
ALONE = [torch.tensor([0.0, 2.0]), torch.tensor([4.0, 1.0])]


def asked(kind: str, number: int = 7) -> load.Asked:
    return load.Asked(number, load.Kind(kind), "Hello", 2, 1, 4.0)


def test_the_same_seed_draws_the_same_requests_of_every_kind() -> None:
    every = load.drawn(200, 1, 4)
    assert every == load.drawn(200, 1, 4) != load.drawn(200, 2, 4)
    kinds = Counter(one.kind for one in every)
    assert kinds == {"plain": 66, "edited": 108, "aborted": 12, "raises": 10, "hangs": 4}
    assert {one.layer for one in every} == {0, 1, 2, 3}
    assert set(Counter(one.kind for one in load.drawn(20, 1, 4))) == set(load.Kind)


@pytest.mark.parametrize(
    ("kind", "answer", "end"),
    [
        ("edited", {"logits": ALONE}, "same"),
        ("edited", {"logits": [ALONE[0], ALONE[1] + 1e-6]}, "other"),
        ("plain", {"logits": ALONE[:1]}, "other"),
        ("plain", {"logits": [ALONE[0], torch.tensor([4.0, math.nan])]}, "other"),
        ("plain", {}, "lost"),
        ("plain", TimeoutError(), "lost"),
        ("aborted", {}, "failed as expected"),
        ("aborted", RuntimeError("the request had ended"), "lost"),
        ("hangs", {}, "failed as expected"),
        ("raises", ValueError("request 7"), "failed as expected"),
        ("raises", ValueError("request 8"), "lost"),  # a neighbour's
        ("raises", {"logits": ALONE}, "other"),
    ],
)
def test_how_a_request_ended(kind: str, answer: object, end: str) -> None:
    alone = None if kind == "raises" else ALONE
    assert load.ended(asked(kind), answer, alone, 0.0) == end


def test_what_may_be_off_is_what_vllm_is_off_by_itself() -> None:
    allowed, words = load.allowed_by([0.0, 0.0])
    assert not allowed
    assert "2 of 2 the same to the last bit" in words
    allowed, words = load.allowed_by([0.0, 1e-7])
    assert allowed == pytest.approx(1e-5)
    assert "1 of 2" in words
    assert load.ended(asked("plain"), {"logits": [ALONE[0], ALONE[1] + 1e-6]}, ALONE, allowed) == (
        "same"
    )


def test_answers_are_compared_until_they_go_on_with_another_token() -> None:
    near = [torch.tensor([2.0, 2.0 + 1e-6]), torch.tensor([0.0, 1.0])]
    other = [torch.tensor([2.0 + 1e-6, 2.0]), torch.tensor([1.0, 0.0])]
    assert load.apart(near, other) < 1e-6
    assert load.edits_shown([ALONE, ALONE[::-1]]) and not load.edits_shown([ALONE, ALONE])


def test_all_are_asked_by_so_many_at_once_and_errors_are_kept() -> None:
    under_way, most = 0, 0

    async def answer(one: load.Asked) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if one.number == 3:
            raise ValueError("three")
        return one.number

    answers = asyncio.run(load.together(load.drawn(20, 1, 4), 5, answer))
    assert most == 5
    assert [answers[n] for n in (0, 19)] == [0, 19]
    with pytest.raises(ValueError, match="three"):
        load.whole(answers)


def test_a_process_with_more_threads_or_one_that_came_has_grown() -> None:
    before = {"engine 1": load.Weight(100.0, 10, 0, 5), "engine 2": load.Weight(100.0, 10, 0, 5)}
    assert load.grown(before, before) == []
    after = {"engine 1": load.Weight(100.0, 10, 0, 6), "engine 3": load.Weight(1.0, 1, 0, 1)}
    assert load.grown(before, after) == ["engine 1", "engine 2", "engine 3"]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "further", "code"),
    [
        ("vllm-serve", (), 0),
        ("vllm-async", (), 0),
        ("vllm-async", ("--control",), 1),
    ],
)
def test_many_requests_at_once(column: str, further: tuple[str, ...], code: int) -> None:
    command = [sys.executable, ROOT / "bench" / "load.py", "-b", column, "--requests", "40"]
    done = subprocess.run([*command, *further], check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr[-3000:]
    edited = next(line for line in done.stdout.splitlines() if " edited " in line)
    same, other = edited.replace("│", " ").split()[1:3]
    assert int(other) == code, done.stdout
    assert int(same) > 10
    assert "processes left: none" in done.stdout


def test_memory_is_what_a_process_has_written_and_not_what_it_maps() -> None:
    """Pages of a library are its own or not, as other processes that map them come and go."""
    library = Path(torch.__path__[0], "lib", "libtorch_cpu.so")
    with library.open("rb") as opened:
        os.fsync(opened.fileno())  # pages that wait for the disk count as written
        before = soak.written(os.getpid())
        mapped = mmap.mmap(opened.fileno(), 64 << 20, access=mmap.ACCESS_COPY)
        assert any(mapped[:: mmap.PAGESIZE])
        assert soak.written(os.getpid()) < before + 16
        mapped.close()
    # A map of its own: an allocator may hand out pages that the process has written before.
    with mmap.mmap(-1, 64 << 20) as kept:
        before = soak.written(os.getpid())
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
        assert soak.written(os.getpid()) > before + 48

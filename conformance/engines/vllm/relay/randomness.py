"""Random numbers that agree between the copies of a block.

Only the last stage samples, so the stages' random states drift apart; a block that draws from
them would add another noise on each stage. Each worker therefore has states of its own,
seeded from its request's id, which are in place whenever its block runs. The noise differs
from the one that a single-stage engine would have drawn.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from nnsight.intervention.interleaver import Mediator


def seed_of(request_id: str, worker: str) -> int:
    """The same on every stage: vLLM gives a request one id for the whole engine."""
    return zlib.crc32(f"{request_id}/{worker}".encode())


class _States:
    """The random states a block sees: torch's on the host and the device, and Python's."""

    def __init__(self, seed: int, cuda: bool) -> None:
        self.host = torch.Generator().manual_seed(seed).get_state()
        # Noise for an experiment, no secret.
        self.python = random.Random(seed).getstate()  # noqa: S311
        self.device = torch.Generator(device="cuda").manual_seed(seed).get_state() if cuda else None

    def exchange(self) -> None:
        """Put these states in place and keep those that were there."""
        host, python = torch.get_rng_state(), random.getstate()
        torch.set_rng_state(self.host)
        random.setstate(self.python)
        self.host, self.python = host, python
        if self.device is not None:
            device = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(self.device)
            self.device = device


class _Place:
    """Whose random states are in place, if not the engine's."""

    keeping = False
    holder: _States | None = None

    def take(self, states: _States | None) -> None:
        """Put these in place, or the engine's own."""
        if states is self.holder:
            return
        for each in (self.holder, states):
            if each is not None:
                each.exchange()
        self.holder = states


_PLACE = _Place()


@contextmanager
def kept() -> Iterator[None]:
    """Leave a block's states in place between its turns: to exchange them costs as much as a small
    layer, and while this lasts, in a forward or a replay, nobody else draws.
    """
    before, _PLACE.keeping = _PLACE.keeping, True
    try:
        yield
    finally:
        _PLACE.keeping = before
        if not before:
            _PLACE.take(None)


class SeededMediator(Mediator):  # type: ignore[misc]
    """A worker whose block runs with random states of its own."""

    states: _States

    def switch(self, *args: Any) -> Any:
        """Resume the block with its own random states in place."""
        before = _PLACE.holder
        _PLACE.take(self.states)
        try:
            return super().switch(*args)
        finally:
            # One block may be served while another runs; that one goes on with its own.
            if before is not None or not _PLACE.keeping:
                _PLACE.take(before)


def adopt(mediator: Mediator, request_id: str, worker: str, device: torch.device) -> None:
    """Give a worker that has not started its own random states."""
    mediator.__class__ = SeededMediator
    mediator.states = _States(seed_of(request_id, worker), device.type == "cuda")

"""Random numbers that agree between the copies of a block.

Only the last stage samples, so the stages' random states drift apart, and a block that draws from
them would add different noise on each stage. Therefore each worker has separate random states,
seeded by its request's id, which are active while its block runs. The noise differs from a
single-stage engine's.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from nnsight.intervention.interleaver import Mediator


class _States:
    """The random states a block sees: torch's on the host and the device, and Python's."""

    def __init__(self, seed: int, cuda: bool) -> None:
        self.host = torch.Generator().manual_seed(seed).get_state()
        # Not for cryptography.
        self.python = random.Random(seed).getstate()  # noqa: S311
        self.device = torch.Generator(device="cuda").manual_seed(seed).get_state() if cuda else None

    def exchange(self) -> None:
        """Swap these states with the active ones."""
        host, python = torch.get_rng_state(), random.getstate()
        torch.set_rng_state(self.host)
        random.setstate(self.python)
        self.host, self.python = host, python
        if self.device is not None:
            device = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(self.device)
            self.device = device


class _Place:
    """Which random states are active, if not the engine's."""

    keeping = False
    holder: _States | None = None

    def take(self, states: _States | None) -> None:
        """Activate these states, or the engine's if None."""
        if states is self.holder:
            return
        for each in (self.holder, states):
            if each is not None:
                each.exchange()
        self.holder = states


_PLACE = _Place()


@contextmanager
def kept() -> Iterator[None]:
    """Keep a block's states active between its turns. Swapping them costs as much as a small layer,
    and in a forward or a replay nothing else draws random numbers.
    """
    before, _PLACE.keeping = _PLACE.keeping, True
    try:
        yield
    finally:
        _PLACE.keeping = before
        if not before:
            _PLACE.take(None)


class SeededMediator(Mediator):  # type: ignore[misc]
    """A worker whose block runs with its own random states."""

    states: _States

    def switch(self, *args: object) -> object:
        """Resume the block with its own random states active."""
        before = _PLACE.holder
        _PLACE.take(self.states)
        try:
            return super().switch(*args)
        finally:
            # A block may be served while another runs, which then continues with its own states.
            if before is not None or not _PLACE.keeping:
                _PLACE.take(before)


def adopt(mediator: Mediator, request_id: str, worker: str, device: torch.device) -> None:
    """Give a worker that has not started its own random states. The seed is equal on all stages, as
    vLLM's request ids are.
    """
    seed = zlib.crc32(f"{request_id}/{worker}".encode())
    mediator.__class__ = SeededMediator
    mediator.states = _States(seed, device.type == "cuda")

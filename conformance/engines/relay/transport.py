"""Messages between the stages of one tensor-parallel column, over a gloo group of its own.

A send returns at once; it is waited on later, by step number, when the protocol guarantees
that the receiver has asked for it. gloo finishes a send only then, and says so only to
``wait()``.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

#: Messages up to this size travel in one piece; the rest of a longer one follows it.
FRAME = 16 * 1024

_HEADER = 8


class _Sent(NamedTuple):
    step: int
    works: list[dist.Work]
    data: list[torch.Tensor]


def columns(stages: int, tensor_size: int) -> list[list[int]]:
    """The world ranks of each column: rank = stage × tensor size + column."""
    return [
        [stage * tensor_size + column for stage in range(stages)] for column in range(tensor_size)
    ]


class Column:
    """The stages that share one tensor-parallel rank.

    Built on every world rank at the same point of loading: ``new_group`` must be called by
    all of them, for all columns, in the same order, or the load hangs.
    """

    def __init__(self, stage: int, column: int, stages: int, tensor_size: int) -> None:
        if dist.get_world_size() != stages * tensor_size:
            raise NotImplementedError(
                f"the relay knows pipeline x tensor parallelism only: {stages} x {tensor_size} "
                f"stages in a world of {dist.get_world_size()} ranks"
            )
        from vllm import envs

        timeout = timedelta(seconds=envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
        self.stage = stage
        for ranks in columns(stages, tensor_size):
            group = dist.new_group(ranks, backend="gloo", timeout=timeout)
            if ranks[0] == column:
                self.ranks, self.group = ranks, group
        self._sent: deque[_Sent] = deque()

    @property
    def unsent(self) -> int:
        """Sends not yet waited on."""
        return len(self._sent)

    def send(self, stage: int, step: int, data: torch.Tensor) -> None:
        """Start sending ``data`` to ``stage``."""
        size = data.numel()
        frame = torch.empty(FRAME, dtype=torch.uint8)
        head = min(size, FRAME - _HEADER)
        frame[:_HEADER] = torch.tensor([size], dtype=torch.int64).view(torch.uint8)
        frame[_HEADER : _HEADER + head] = data[:head]
        parts = [frame] if head == size else [frame, data[head:]]
        peer = self.ranks[stage]
        works = [dist.isend(part, peer, group=self.group) for part in parts]
        self._sent.append(_Sent(step, [work for work in works if work is not None], parts))

    def receive(self, stage: int) -> torch.Tensor:
        """The next message from ``stage``; blocks until it is there."""
        peer = self.ranks[stage]
        frame = torch.empty(FRAME, dtype=torch.uint8)
        dist.recv(frame, peer, group=self.group)
        size = int(frame[:_HEADER].view(torch.int64).item())
        head = min(size, FRAME - _HEADER)
        if head == size:
            return frame[_HEADER : _HEADER + size].clone()
        data = torch.empty(size, dtype=torch.uint8)
        data[:head] = frame[_HEADER:]
        dist.recv(data[head:], peer, group=self.group)
        return data

    def settle(self, bound: int) -> None:
        """Wait for the sends of the steps up to ``bound``, which were asked for, and drop them."""
        while self._sent and self._sent[0].step <= bound:
            for work in self._sent.popleft().works:
                work.wait()

    def gather(self, obj: object) -> list[object]:
        """Every stage's ``obj``, in stage order. For loading only: it blocks all stages."""
        gathered: list[object] = [None] * len(self.ranks)
        dist.all_gather_object(gathered, obj, group=self.group)
        return gathered

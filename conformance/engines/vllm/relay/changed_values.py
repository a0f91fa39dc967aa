"""What blocks changed in the values they were served, compared for all visits of a step at once.

On a GPU, reading a tensor's content waits for everything launched before. So copies of each value
before and after its visit are kept, and compared together at the end of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engines.structure import map_tensors, tensors_in
from conformance.engines.vllm.relay.record import Reader, digest, flat, same, snapshot

#: A request's rows in a step's batch: the first row and the number of rows.
Rows = Sequence[int]


@dataclass(frozen=True)
class Visit:
    """The value served to the requests with these rows, before and after the visit.

    `groups` maps each request's place in the batch of `total` rows to its rows.
    """

    groups: Mapping[int, Rows]
    total: int
    before: Any
    after: Any


def ended_visit(groups: Mapping[int, Rows], total: int, before: Any, after: Any) -> Visit:
    """Return a finished visit. Copies the value after it if it is compared later."""
    return Visit(dict(groups), total, before, snapshot(after) if later(before) else after)


def later(value: Any) -> bool:
    """Return whether a value is compared at the end of the step instead of immediately."""
    return any(tensor.is_cuda for tensor in tensors_in(value))


def readers(visits: Sequence[Visit], batcher: Any) -> list[tuple[Reader, ...]]:
    """Return each visit's requests, with the digest of each one's changed rows."""
    untouched = _untouched(visits)
    return [
        tuple(Reader(row, None) for row in visit.groups) if clean else _by_row(visit, batcher)
        for visit, clean in zip(visits, untouched, strict=True)
    ]


def _untouched(visits: Sequence[Visit]) -> list[bool]:
    """Return, for each visit, whether it changed nothing."""
    clean = [True] * len(visits)
    alike: dict[tuple[Any, ...], list[tuple[int, torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for index, visit in enumerate(visits):
        if not visit.groups:
            continue
        if not later(visit.before):
            clean[index] = same(visit.before, visit.after)
            continue
        one, other = tensors_in(visit.before), tensors_in(visit.after)
        if len(one) != len(other):
            clean[index] = False
            continue
        for a, b in zip(one, other, strict=True):
            if a.dtype != b.dtype or a.shape != b.shape:
                clean[index] = False
            else:
                alike[a.dtype, a.shape, a.device].append((index, a, b))
    for index in _differing(list(alike.values())):
        clean[index] = False
    return clean


def _differing(alike: Sequence[Sequence[tuple[int, torch.Tensor, torch.Tensor]]]) -> set[int]:
    """Return the visits whose pairs are not bitwise equal; each list has pairs of one shape."""
    flags = []
    for pairs in alike:
        before = torch.stack([_bits(one) for _, one, _ in pairs])
        after = torch.stack([_bits(other) for _, _, other in pairs])
        flags.append((before != after).any(dim=1))
    if not flags:
        return set()
    indices = [index for pairs in alike for index, _, _ in pairs]
    differs = torch.cat([flag.to(flags[0].device) for flag in flags]).tolist()
    return {index for index, differ in zip(indices, differs, strict=True) if differ}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    whole = flat(tensor)
    return whole.view(torch.int16) if whole.element_size() % 2 == 0 else whole.view(torch.uint8)


def _by_row(visit: Visit, batcher: Any) -> tuple[Reader, ...]:
    present, batcher.total = batcher.total, visit.total
    try:
        found = []
        for row, group in visit.groups.items():
            mine, theirs = _rows(batcher, visit.before, group), _rows(batcher, visit.after, group)
            found.append(Reader(row, None if same(mine, theirs) else digest(theirs)))
        return tuple(found)
    finally:
        batcher.total = present


def _rows(batcher: Any, value: Any, group: Rows) -> Any:
    return map_tensors(value, lambda t: batcher._narrow_tensor(t, group) if t.ndim else t)

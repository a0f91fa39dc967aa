"""What blocks left of the values they were served, told for all visits of a step at once.

On a GPU each question about a tensor's content waits for all that was launched before it. So there
copies of a value before and after its visit are kept, and compared together when the step is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engines.structure import map_tensors, tensors_in
from conformance.engines.vllm.relay.record import Reader, digest, flat, same, snapshot

#: A request's rows of a step's batch: the first, and how many.
Rows = Sequence[int]


@dataclass(frozen=True)
class Visit:
    """A visit: what was served to the requests with these rows, and what they left of it.

    `groups` has each request's rows by its place in the batch of `total` rows.
    """

    groups: Mapping[int, Rows]
    total: int
    before: Any
    after: Any


def ended_visit(groups: Mapping[int, Rows], total: int, before: Any, after: Any) -> Visit:
    """A visit that is over. What it left is copied where it is compared later."""
    return Visit(dict(groups), total, before, snapshot(after) if later(before) else after)


def later(value: Any) -> bool:
    """Whether a value is compared when the step is over, not as soon as it was served."""
    return any(tensor.is_cuda for tensor in tensors_in(value))


def readers(visits: Sequence[Visit], batcher: Any) -> list[tuple[Reader, ...]]:
    """Each visit's requests, with what each left of its own rows."""
    untouched = _untouched(visits)
    return [
        tuple(Reader(row, None) for row in visit.groups) if clean else _by_row(visit, batcher)
        for visit, clean in zip(visits, untouched, strict=True)
    ]


def _untouched(visits: Sequence[Visit]) -> list[bool]:
    """Whether a visit left everything as it was, for each."""
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
    """The visits of those pairs, in lists of one shape each, that are not equal bit by bit."""
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

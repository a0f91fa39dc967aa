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
from conformance.engines.vllm.relay.record import Reader, bits, digests, same, snapshot

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
    edited = iter(
        _by_row([v for v, clean in zip(visits, untouched, strict=True) if not clean], batcher)
    )
    return [
        tuple(Reader(row, None) for row in visit.groups) if clean else next(edited)
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
        before = torch.stack([bits(one) for _, one, _ in pairs])
        after = torch.stack([bits(other) for _, _, other in pairs])
        flags.append((before != after).any(dim=1))
    if not flags:
        return set()
    indices = [index for pairs in alike for index, _, _ in pairs]
    differs = torch.cat([flag.to(flags[0].device) for flag in flags]).tolist()
    return {index for index, differ in zip(indices, differs, strict=True) if differ}


def _by_row(visits: Sequence[Visit], batcher: Any) -> list[tuple[Reader, ...]]:
    """Of visits that did not leave everything as it was: what each request left of its own rows."""
    values = [
        _rows(batcher, visit, value, group)
        for visit in visits
        for group in visit.groups.values()
        for value in (visit.before, visit.after)
    ]
    found = iter(digests(values))
    return [
        tuple(
            Reader(row, None if before == after else after)
            for row, before, after in ((row, next(found), next(found)) for row in visit.groups)
        )
        for visit in visits
    ]


def _rows(batcher: Any, visit: Visit, value: Any, group: Rows) -> Any:
    present, batcher.total = batcher.total, visit.total
    try:
        return map_tensors(value, lambda t: batcher._narrow_tensor(t, group) if t.ndim else t)
    finally:
        batcher.total = present

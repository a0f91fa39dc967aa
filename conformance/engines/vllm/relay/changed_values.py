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
from conformance.engines.vllm.relay.record import Reader, digest, flat, same

#: A request's rows in a step's batch: the first row and the number of rows.
Rows = Sequence[int]


@dataclass(frozen=True)
class EndedVisit:
    """Copies of the value before and after it was served to the requests with these rows.

    `groups` maps each request's place in the batch of `total` rows to its rows.
    """

    groups: Mapping[int, Rows]
    total: int
    before: Any
    after: Any


def find_readers(visits: Sequence[EndedVisit], batcher: Any) -> list[tuple[Reader, ...]]:
    """Return each visit's requests, with the digest of each one's changed rows."""
    changed = _find_changed(visits)
    return [
        _compare_rows(visit, batcher)
        if index in changed
        else tuple(Reader(row, None) for row in visit.groups)
        for index, visit in enumerate(visits)
    ]


def _find_changed(visits: Sequence[EndedVisit]) -> set[int]:
    """Return the indices of the visits that changed anything; waits for the device once."""
    changed: set[int] = set()
    alike: dict[tuple[Any, ...], list[tuple[int, torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for index, visit in enumerate(visits):
        before, after = tensors_in(visit.before), tensors_in(visit.after)
        if not visit.groups:
            continue
        if [(t.dtype, t.shape) for t in before] != [(t.dtype, t.shape) for t in after]:
            changed.add(index)
            continue
        for one, other in zip(before, after, strict=True):
            alike[one.dtype, one.shape, one.device].append((index, one, other))
    flags = []
    for pairs in alike.values():
        left = torch.stack([_bits(one) for _, one, _ in pairs])
        right = torch.stack([_bits(other) for *_, other in pairs])
        flags.append((left != right).any(dim=1))
    if flags:
        differs = torch.cat([flag.to(flags[0].device) for flag in flags]).tolist()
        indices = [index for pairs in alike.values() for index, *_ in pairs]
        changed |= {index for index, differ in zip(indices, differs, strict=True) if differ}
    return changed


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    whole = flat(tensor)
    return whole.view(torch.int16) if whole.element_size() % 2 == 0 else whole.view(torch.uint8)


def _compare_rows(visit: EndedVisit, batcher: Any) -> tuple[Reader, ...]:
    """Return the visit's requests, comparing each one's own rows."""

    def select(value: Any, group: Rows) -> Any:
        return map_tensors(value, lambda t: batcher._narrow_tensor(t, group) if t.ndim else t)

    present, batcher.total = batcher.total, visit.total
    try:
        found = []
        for row, group in visit.groups.items():
            before, after = select(visit.before, group), select(visit.after, group)
            found.append(Reader(row, None if same(before, after) else digest(after)))
        return tuple(found)
    finally:
        batcher.total = present

"""Recording visits on the stage that owns a location, and replaying them on the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from nnsight.modeling.vllm.interleaver import VLLMInterleaver

from conformance.engines.structure import map_tensors
from conformance.engines.vllm.relay.changed_values import Visit, ended_visit, later, readers
from conformance.engines.vllm.relay.errors import StageDivergenceError
from conformance.engines.vllm.relay.record import Reader, ServedValue, Unsendable, Visits, snapshot


@dataclass(frozen=True)
class StepMediator:
    """A worker that took part in a step, and the rows it was entitled to."""

    mediator: Any
    start: int
    tokens: int
    row: int


@dataclass(frozen=True)
class StepBatch:
    """The batch of one step: its workers, its number of tokens, and each row's request."""

    members: tuple[StepMediator, ...]
    tokens: int
    requests: tuple[str, ...]


class _Whole:
    """A model's fragments, except one location, whose value is already whole."""

    def __init__(self, fragments: Any, location: str) -> None:
        self._fragments = fragments
        self._location = location

    def fragmented(self, location: str) -> bool:
        return location != self._location and bool(self._fragments.fragmented(location))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fragments, name)


class RelayInterleaver(VLLMInterleaver):  # type: ignore[misc]
    """nnsight's interleaver, which also records what it serves if ``log`` is set.

    It has no constructor: :func:`adopt` changes the class of a loaded engine's interleaver, and
    sets ``elsewhere`` and ``log``.
    """

    #: The record of this step's visits, or ``None`` if nobody needs it.
    log: Visits | None
    #: Locations of modules on several stages that another stage serves.
    elsewhere: frozenset[str]
    fragments: Any

    def handle(self, provider: str, value: Any) -> Any:
        """Serve a visit as nnsight does, and record it."""
        if provider in self.elsewhere:
            return value
        log = self.log
        if log is None:
            return super().handle(provider, value)
        index = len(log.locations)
        log.locations.append(provider)
        observed = provider in self.observers
        if provider not in self.parked and not observed:
            self.counts[provider] = self.counts.get(provider, 0) + 1
            return value
        ready = self._ready(provider)
        if not ready and not observed:
            return super().handle(provider, value)
        return self._serve(log, index, ready, value)

    def _serve(self, log: Visits, index: int, ready: list[Any], value: Any) -> Any:
        provider = log.locations[index]
        fragments, undo = self.fragments, None
        if fragments is not None and fragments.enabled and fragments.fragmented(provider):
            value, undo = fragments.whole(provider, value)
            self.fragments = _Whole(fragments, provider)
        before = snapshot(value)
        log.served[index] = ServedValue(before, ())
        groups, total = groups_of(ready), self.batcher.total
        try:
            after = super().handle(provider, value)
        finally:
            self.fragments = fragments
        visit = ended_visit(groups, total, before, after)
        if later(before):
            log.unsettled[index] = visit
        else:
            log.served[index] = ServedValue(before, *readers([visit], self.batcher))
        return after if undo is None else undo(after)

    def settle(self, log: Visits) -> None:
        """Determine what the requests changed in each unsettled visit."""
        found = readers(list(log.unsettled.values()), self.batcher)
        for index, known in zip(log.unsettled, found, strict=True):
            if index in log.served:
                log.served[index] = log.served[index]._replace(readers=known)
        log.unsettled.clear()


def groups_of(ready: list[Any]) -> dict[int, list[int]]:
    """Return the rows of each worker's request, by its place in the batch."""
    return {mediator.row: list(mediator.batch_group) for mediator in ready}


def adopt(interleaver: Any, elsewhere: frozenset[str]) -> RelayInterleaver:
    """Change the class of a loaded engine's interleaver to the recording one."""
    interleaver.__class__ = RelayInterleaver
    interleaver.log = None
    interleaver.elsewhere = elsewhere
    adopted: RelayInterleaver = interleaver
    return adopted


@contextmanager
def placed(interleaver: RelayInterleaver, batch: StepBatch) -> Iterator[None]:
    """Restore the interleaver's state in the step of ``batch`` inside the with block."""
    batcher = interleaver.batcher
    before = (interleaver.mediators, batcher.total, interleaver.interleaving)
    groups = [(m.mediator, m.mediator.batch_group) for m in batch.members]
    rows = [(m.mediator, getattr(m.mediator, "row", 0)) for m in batch.members]
    for member in batch.members:
        member.mediator.batch_group = [member.start, member.tokens]
        member.mediator.row = member.row
    batcher.total = batch.tokens
    interleaver.mediators = [m.mediator for m in batch.members]
    interleaver.interleaving = True
    interleaver.reindex()
    try:
        yield
    finally:
        interleaver.mediators, batcher.total, interleaver.interleaving = before
        for mediator, group in groups:
            mediator.batch_group = group
        for mediator, row in rows:
            mediator.row = row
        interleaver.reindex()


def _to_rows(interleaver: RelayInterleaver, batch: StepBatch) -> None:
    """Switch from the forward to sampling: one row per request, and only living workers."""
    for member in batch.members:
        member.mediator.batch_group = [member.row, 1]
    interleaver.batcher.total = len(batch.requests)
    interleaver.mediators = [m.mediator for m in batch.members if m.mediator.alive]
    interleaver.reindex()


def replay(
    interleaver: RelayInterleaver, visits: Visits, batch: StepBatch, device: torch.device
) -> dict[int, StageDivergenceError]:
    """Serve another stage's visits to this stage's workers as if the modules ran here.

    The workers must be placed (see :func:`placed`). Return an error, by row of the batch, for each
    request whose copy here did not do what the owner's copy did.
    """
    errors: dict[int, StageDivergenceError] = {}
    log, interleaver.log = interleaver.log, None
    elsewhere, interleaver.elsewhere = interleaver.elsewhere, frozenset()
    fragments = interleaver.fragments
    counts, served = interleaver.counts, visits.served
    boundary = visits.boundary
    compared = _Compared(errors, visits.stage, interleaver.batcher)
    try:
        for index, location in enumerate(visits.locations):
            if index == boundary:
                _to_rows(interleaver, batch)
            entry = served.get(index)
            if entry is None and location not in interleaver.parked:
                counts[location] = counts.get(location, 0) + 1
                continue
            ready = interleaver._ready(location)
            if entry is None:
                # Only count it: the owner did not serve it, so there is no value here.
                counts[location] = counts.get(location, 0) + 1
                for mediator in ready:
                    errors.setdefault(mediator.row, _unserved(location, visits.stage))
                continue
            if isinstance(entry.value, Unsendable):
                counts[location] = counts.get(location, 0) + 1
                for reader in entry.readers:
                    errors.setdefault(reader.row, _unsendable(location, entry.value))
                continue
            before = map_tensors(entry.value, lambda t: t.to(device))
            value = snapshot(before)
            if fragments is not None and fragments.enabled:
                interleaver.fragments = _Whole(fragments, location)
            groups, total = groups_of(ready), interleaver.batcher.total
            after = interleaver.handle(location, value)
            interleaver.fragments = fragments
            compared.add(location, entry.readers, ended_visit(groups, total, before, after))
    finally:
        interleaver.log, interleaver.elsewhere = log, elsewhere
        interleaver.fragments = fragments
    compared.end()
    return errors


@dataclass
class _Compared:
    """Compares visits with what their owner's copies left. On the host this happens at once, as on
    the owner, since a block may later write to the value; on a GPU, copies are compared at the end.
    """

    errors: dict[int, StageDivergenceError]
    owner: int
    batcher: Any
    waiting: list[tuple[str, tuple[Reader, ...], Visit]] = field(default_factory=list)

    def add(self, location: str, owners: tuple[Reader, ...], visit: Visit) -> None:
        self.waiting.append((location, owners, visit))
        if not later(visit.before):
            self.end()

    def end(self) -> None:
        copies = readers([visit for *_, visit in self.waiting], self.batcher)
        for (location, owners, _), here in zip(self.waiting, copies, strict=True):
            _compare(self.errors, location, self.owner, owners, here)
        self.waiting.clear()


def _compare(
    errors: dict[int, StageDivergenceError],
    location: str,
    owner: int,
    owners: tuple[Reader, ...],
    copies: tuple[Reader, ...],
) -> None:
    there, here = dict(owners), dict(copies)
    for row in here.keys() | there.keys():
        if row not in there:
            errors.setdefault(row, _unserved(location, owner))
        elif row not in here:
            errors.setdefault(row, _unread(location, owner))
        elif here[row] != there[row]:
            errors.setdefault(row, _different(location, owner))


_HINT = (
    "A block runs once per stage; what it reads from its process (ids, clocks, files, other "
    "random states) must not decide what it does."
)


def _unserved(location: str, owner: int) -> StageDivergenceError:
    return StageDivergenceError(
        f"'{location}' was requested, but the copy of this block on stage {owner}, where it "
        f"lives, did not ask for it. {_HINT}"
    )


def _unread(location: str, owner: int) -> StageDivergenceError:
    return StageDivergenceError(
        f"'{location}' was used on stage {owner}, where it lives, but the copy of this block on "
        f"another stage did not ask for it. {_HINT}"
    )


def _different(location: str, owner: int) -> StageDivergenceError:
    return StageDivergenceError(
        f"the edit of '{location}' that stage {owner} applied is not the edit that another "
        f"stage's copy of this block made. {_HINT}"
    )


def _unsendable(location: str, value: Unsendable) -> StageDivergenceError:
    return StageDivergenceError(
        f"'{location}' holds a {value.kind}, which cannot be sent to the other stages"
    )

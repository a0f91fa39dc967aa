"""Recording visits on the stage that owns a location, and replaying them on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.modeling.vllm.interleaver import VLLMInterleaver

from conformance.engines.structure import map_tensors
from conformance.engines.vllm.relay.changed_values import EndedVisit, find_readers
from conformance.engines.vllm.relay.record import Reader, ServedValue, Unsendable, Visits, snapshot


class StageDivergenceError(RuntimeError):
    """The copies of one block did different things on different stages.

    A block runs once per stage. What it reads from its process (its id, a clock, a file, another
    library's random state) differs between stages, so the applied edit is not the reported edit.
    """


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

    It has no constructor: :func:`adopt` changes the class of a loaded engine's interleaver.
    """

    #: The record of this step's visits, or ``None`` if nobody needs it.
    log: Visits | None
    #: Locations of modules on several stages that another stage serves.
    elsewhere: frozenset[str]
    fragments: Any

    def count(self, location: str) -> None:
        """Count a visit that nobody is served at."""
        self.counts[location] = self.counts.get(location, 0) + 1

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
            self.count(provider)
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
        groups, total = _rows_of(ready), self.batcher.total
        try:
            after = super().handle(provider, value)
        finally:
            self.fragments = fragments
        log.unsettled[index] = EndedVisit(groups, total, before, snapshot(after))
        return after if undo is None else undo(after)

    def settle(self, log: Visits) -> None:
        """Determine what the requests changed in each unsettled visit."""
        found = find_readers(list(log.unsettled.values()), self.batcher)
        for index, readers in zip(log.unsettled, found, strict=True):
            if index in log.served:
                log.served[index] = log.served[index]._replace(readers=readers)
        log.unsettled.clear()


def _rows_of(ready: list[Any]) -> dict[int, list[int]]:
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
    mediators = [member.mediator for member in batch.members]
    places = [(mediator.batch_group, getattr(mediator, "row", 0)) for mediator in mediators]
    for member in batch.members:
        member.mediator.batch_group = [member.start, member.tokens]
        member.mediator.row = member.row
    interleaver.mediators, batcher.total, interleaver.interleaving = mediators, batch.tokens, True
    interleaver.reindex()
    try:
        yield
    finally:
        interleaver.mediators, batcher.total, interleaver.interleaving = before
        for mediator, (group, row) in zip(mediators, places, strict=True):
            mediator.batch_group, mediator.row = group, row
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
    replayed: list[tuple[str, tuple[Reader, ...]]] = []
    ended: list[EndedVisit] = []
    try:
        for index, location in enumerate(visits.locations):
            if index == visits.boundary:
                _to_rows(interleaver, batch)
            entry = visits.served.get(index)
            if entry is None:
                # Only count it: the owner did not serve it, so there is no value here.
                waiting = interleaver._ready(location) if location in interleaver.parked else ()
                interleaver.count(location)
                for mediator in waiting:
                    errors.setdefault(mediator.row, _divergence(_UNSERVED, location, visits.stage))
                continue
            if isinstance(entry.value, Unsendable):
                interleaver.count(location)
                words = f"'{location}' holds a {entry.value.kind}, which cannot be sent to the "
                for reader in entry.readers:
                    errors.setdefault(reader.row, StageDivergenceError(f"{words}other stages"))
                continue
            before = map_tensors(entry.value, lambda t: t.to(device))
            if fragments is not None and fragments.enabled:
                interleaver.fragments = _Whole(fragments, location)
            groups, total = _rows_of(interleaver._ready(location)), interleaver.batcher.total
            after = interleaver.handle(location, snapshot(before))
            interleaver.fragments = fragments
            replayed.append((location, entry.readers))
            ended.append(EndedVisit(groups, total, before, snapshot(after)))
    finally:
        interleaver.log, interleaver.elsewhere = log, elsewhere
        interleaver.fragments = fragments
    copies = find_readers(ended, interleaver.batcher)
    for (location, owners), here in zip(replayed, copies, strict=True):
        for row, words in compare_readers(owners, here).items():
            errors.setdefault(row, _divergence(words, location, visits.stage))
    return errors


def compare_readers(owners: Sequence[Reader], copies: Sequence[Reader]) -> dict[int, str]:
    """Return by row what differs between the owner's readers of a visit and the copy's here."""
    there, here = dict(owners), dict(copies)
    found = dict.fromkeys(here.keys() - there.keys(), _UNSERVED)
    found |= dict.fromkeys(there.keys() - here.keys(), _UNREAD)
    edited = {row for row in here.keys() & there.keys() if here[row] != there[row]}
    return found | dict.fromkeys(edited, _DIFFERENT)


_UNSERVED = (
    "'{location}' was requested, but the copy of this block on stage {owner}, where it lives, did "
    "not ask for it."
)
_UNREAD = (
    "'{location}' was used on stage {owner}, where it lives, but the copy of this block on another "
    "stage did not ask for it."
)
_DIFFERENT = (
    "the edit of '{location}' that stage {owner} applied is not the edit that another stage's copy "
    "of this block made."
)
_HINT = (
    "A block runs once per stage; what it reads from its process (ids, clocks, files, other "
    "random states) must not decide what it does."
)


def _divergence(words: str, location: str, owner: int) -> StageDivergenceError:
    return StageDivergenceError(f"{words.format(location=location, owner=owner)} {_HINT}")

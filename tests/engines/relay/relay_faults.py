"""The relay with one safety taken out, to see that some test notices.

Each fault is applied in the engine's process before the engine is built; the stages are
forked from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


def nothing(*_: Any, **__: Any) -> None:
    """Stands in for what is taken out."""


def counts_of_served_visits_only() -> None:
    from conformance.engines.vllm.relay import stage
    from conformance.engines.vllm.relay.record import Visits

    original = stage.replay

    def replay(interleaver: Any, visits: Visits, batch: Any, device: Any) -> Any:
        kept = sorted(visits.served)
        boundary = sum(index < visits.boundary for index in kept)
        served = {new: visits.served[old] for new, old in enumerate(kept)}
        locations = [visits.locations[old] for old in kept]
        fewer = Visits(visits.stage, locations, boundary, served)
        return original(interleaver, fewer, batch, device)

    stage.replay = replay


def visits_counted_for_absent_workers() -> None:
    from conformance.engines.vllm.relay.stage import Relay

    Relay._credit = nothing


def no_cascade() -> None:
    from conformance.engines.vllm.relay import stage

    original = stage.RelayMessage

    def message(step: int, visits: Any = (), *rest: Any, **kwargs: Any) -> Any:
        return original(step, tuple(visits[-1:]), *rest, **kwargs)

    stage.RelayMessage = message


def no_backlog() -> None:
    from conformance.engines.vllm.relay.stage import Relay

    original = Relay.catch_up
    Relay.catch_up = lambda self, bound: original(self, bound) if self.last else None


def backlog_bound_by_age_only() -> None:
    from conformance.engines.vllm.relay.stage import Relay

    Relay.collecting = nothing


def no_digests() -> None:
    from conformance.engines.vllm.relay import replay
    from conformance.engines.vllm.relay.record import Reader

    replay.readers = lambda visits, _: [
        tuple(Reader(row, None) for row in visit.groups) for visit in visits
    ]


def caches_not_recorded() -> None:
    from conformance.engines.vllm.relay.replay import RelayInterleaver

    original = RelayInterleaver.handle

    def handle(self: Any, provider: str, value: Any) -> Any:
        if self.log is not None and not self._ready(provider):
            self.log.locations.append(provider)
            log, self.log = self.log, None
            try:
                return original(self, provider, value)
            finally:
                self.log = log
        return original(self, provider, value)

    RelayInterleaver.handle = handle


def live_values_sent() -> None:
    from conformance.engines.vllm.relay import replay

    replay.snapshot = lambda value: value


def first_stage_reports() -> None:
    from conformance.engines.vllm.relay.stage import Relay

    Relay.reports = property(lambda self: self.stage == 0)


def spanning_modules_served_everywhere() -> None:
    from conformance.engines.vllm.relay import placeholders

    placeholders.elsewhere = lambda *_, **__: frozenset()


def shared_random_states() -> None:
    from conformance.engines.vllm.relay import randomness

    randomness.adopt = nothing


def weights_not_fetched() -> None:
    from conformance.engines.vllm.relay import placeholders

    placeholders.remote = lambda module, path, fetch: module


def shared_modules_by_local_name() -> None:
    from conformance.engines.vllm.relay import placeholders

    placeholders._first_paths = lambda whole: {path: path for path in whole}


def no_poison() -> None:
    from conformance.engines.vllm.relay.stage import Relay

    Relay.fail = nothing


def groups_of_the_present_step() -> None:
    from conformance.engines.vllm.relay import stage

    stage.placed = lambda interleaver, batch: contextlib.nullcontext()


def rows_left_as_tokens() -> None:
    from conformance.engines.vllm.relay import replay

    replay._to_rows = nothing


def aborted_requests_kept() -> None:
    from conformance.engines.vllm.relay.stage import Relay

    Relay._forget_ended = nothing


def exchange_for_every_request() -> None:
    from conformance.engines.vllm.relay import stage

    original = stage.Relay._track

    def track(self: Any, new: Any) -> None:
        original(self, new)
        for data in new:
            self.tracked.setdefault(data.req_id, stage._Tracked(stage.Request(data.req_id)))

    stage.Relay._track = track


def pieces_sent_under_tensor_parallelism() -> None:
    from conformance.engines.vllm.relay import replay

    original = replay.RelayInterleaver._serve

    def serve(self: Any, log: Any, index: int, ready: Any, value: Any) -> Any:
        fragments, self.fragments = self.fragments, None
        try:
            return original(self, log, index, ready, value)
        finally:
            self.fragments = fragments

    replay.RelayInterleaver._serve = serve


FAULTS: dict[str, Callable[[], None]] = {
    name: fault
    for name, fault in list(globals().items())
    if callable(fault) and getattr(fault, "__module__", None) == __name__ and name != "nothing"
}

"""The relay with one safety taken out, to see that some test notices.

Each fault is applied in the engine's process before the engine is built; the stages are
forked from it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import reduce
from typing import Any, NamedTuple

Program = tuple[Any, ...]


class Fault(NamedTuple):
    """What is replaced, as `module:attribute`; its replacement, given the original; and programs,
    one of which must notice it on this engine: the stages and tensor-parallel ranks of a model.
    """

    target: str
    replace: Callable[[Any], Any]
    programs: tuple[Program, ...]
    model: str = "llama-4"
    pipeline: int = 2
    tensor: int = 1
    settings: tuple[tuple[str, Any], ...] = ()


def inject(name: str) -> None:
    fault = FAULTS[name]
    module, _, path = fault.target.partition(":")
    *above, attribute = path.split(".")
    found = importlib.import_module(f"conformance.engines.vllm.relay.{module}")
    owner = reduce(getattr, above, found)
    setattr(owner, attribute, fault.replace(getattr(owner, attribute)))


def take_out(_: Any) -> Any:
    def nothing(*_: Any, **__: Any) -> None:
        pass

    return nothing


def replay_served_only(original: Any) -> Any:
    from conformance.engines.vllm.relay.record import Visits

    def replay(interleaver: Any, visits: Visits, batch: Any, device: Any) -> Any:
        kept = sorted(visits.served)
        boundary = sum(index < visits.boundary for index in kept)
        served = {new: visits.served[old] for new, old in enumerate(kept)}
        locations = [visits.locations[old] for old in kept]
        fewer = Visits(visits.stage, locations, boundary, served)
        return original(interleaver, fewer, batch, device)

    return replay


def send_own_visits_only(original: Any) -> Any:
    def message(step: int, visits: Any = (), *rest: Any, **kwargs: Any) -> Any:
        return original(step, tuple(visits[-1:]), *rest, **kwargs)

    return message


def catch_up_on_the_last(original: Any) -> Any:
    return lambda self, bound: original(self, bound) if self.last else None


def find_no_changes(_: Any) -> Any:
    from conformance.engines.vllm.relay.record import Reader

    return lambda visits, _: [tuple(Reader(row, None) for row in visit.groups) for visit in visits]


def record_no_caches(original: Any) -> Any:
    def handle(self: Any, provider: str, value: Any) -> Any:
        if self.log is not None and not self._ready(provider):
            self.log.locations.append(provider)
            log, self.log = self.log, None
            try:
                return original(self, provider, value)
            finally:
                self.log = log
        return original(self, provider, value)

    return handle


def track_everything(original: Any) -> Any:
    def track(self: Any, new: Any) -> None:
        original(self, new)
        for data in new:
            self.tracked.setdefault(data.req_id, 0)

    return track


def serve_pieces(original: Any) -> Any:
    def serve(self: Any, log: Any, index: int, ready: Any, value: Any) -> Any:
        fragments, self.fragments = self.fragments, None
        try:
            return original(self, log, index, ready, value)
        finally:
            self.fragments = fragments

    return serve


FLIGHT = (("max_model_len", 64), ("max_num_batched_tokens", 64))
FEW_BLOCKS = (("block_size", 32), ("num_gpu_blocks_override", 6))
#: An engine that does not survive its fault, and is nobody else's.
ALONE = (("max_model_len", 96),)

BACKWARD: Program = ("backward_between_steps",)
READ_ALL: Program = ("read_all",)
PARTS: Program = ("sub_modules",)

FAULTS = {
    "counts_of_served_visits_only": Fault(
        "stage:replay",
        replay_served_only,
        (("steps", slice(2, 5), True), ("samples_forced",), ("wave",)),
    ),
    "visits_counted_for_absent_workers": Fault(
        "stage:Relay._credit", take_out, (("preempted",),), settings=FEW_BLOCKS
    ),
    "no_cascade": Fault(
        "stage:RelayMessage", send_own_visits_only, (BACKWARD, READ_ALL), "llama-6", 3
    ),
    "no_backlog": Fault("stage:Relay.catch_up", catch_up_on_the_last, (BACKWARD,)),
    "backlog_bound_by_age_only": Fault("stage:Relay.collecting", take_out, (READ_ALL,)),
    "no_digests": Fault("replay:find_readers", find_no_changes, (("writes_process_id", 0),)),
    "caches_not_recorded": Fault(
        "replay:RelayInterleaver.handle", record_no_caches, (("cached",),)
    ),
    "live_values_sent": Fault(
        "replay:snapshot", lambda _: lambda value: value, (("in_place",), ("cross_write",), PARTS)
    ),
    "first_stage_reports": Fault(
        "stage:Relay.reports",
        lambda _: property(lambda self: self.stage == 0),
        (BACKWARD, READ_ALL, ("stopped",)),
    ),
    "spanning_modules_served_everywhere": Fault(
        "placeholders:elsewhere", lambda _: lambda *_, **__: frozenset(), (PARTS,)
    ),
    "shared_random_states": Fault("randomness:adopt", take_out, (("noisy", 0),)),
    "weights_not_fetched": Fault("placeholders:make_remote", take_out, (("norm_applied",),)),
    "shared_modules_by_local_name": Fault(
        "placeholders:_first_paths",
        lambda _: lambda whole: {path: path for path in whole},
        (("rotary", 1),),
    ),
    "no_poison": Fault("stage:Relay.fail", take_out, (("forward_raises", 1),), settings=ALONE),
    "groups_of_the_present_step": Fault(
        "stage:placed", lambda _: lambda *_: nullcontext(), (("wave", 8, 6),), settings=FLIGHT
    ),
    "rows_left_as_tokens": Fault("replay:_to_rows", take_out, (("rows_carried",),)),
    "aborted_requests_kept": Fault("stage:Relay._forget_ended", take_out, (("abort_noticed",),)),
    "exchange_for_every_request": Fault(
        "stage:Relay._track", track_everything, (("bytes_of_untraced",),)
    ),
    "pieces_sent_under_tensor_parallelism": Fault(
        "replay:RelayInterleaver._serve", serve_pieces, (PARTS,), tensor=2
    ),
}

"""One stage's state in the relay: the current step, and what was sent, received and replayed.

All decisions follow from the scheduler's output and the requests' payloads, which are the same on
every rank, so no stage has to ask another whether there is something to receive.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from nnsight.intervention.errors import capture_exception
from nnsight.intervention.interleaver import EarlyStopException
from nnsight.modeling.vllm.model_runners.GPUModelRunner import Request, Requests

from conformance.engines.vllm.relay import randomness
from conformance.engines.vllm.relay.calls import Calls
from conformance.engines.vllm.relay.record import (
    LocationNumbers,
    Packed,
    RelayMessage,
    Visits,
    pack,
    parted,
    unpack,
)
from conformance.engines.vllm.relay.replay import (
    RelayInterleaver,
    StepBatch,
    StepMediator,
    placed,
    replay,
)
from conformance.engines.vllm.relay.transport import RankPipeline

#: The keys of the record among the activations: all of it on the host, or its values separately on
#: the device.
RECORD = "conformance.relay"
VALUES = "conformance.relay.values"

#: Seconds to keep a request that ended without a collect: an asynchronous client collects after the
#: scheduler has dropped the request, a synchronous one before.
GRACE = 5.0


class StageFailedError(RuntimeError):
    """Another stage could not run this step; the message is that stage's error."""


@dataclass
class _Step:
    """The step in progress."""

    number: int
    received: tuple[Visits, ...] = ()
    batch: StepBatch | None = None
    told: bool = False


@dataclass
class Relay:
    """The relay's state on one rank.

    ``tracked`` maps each request with a block to the last step it was scheduled in.
    """

    column: RankPipeline
    interleaver: RelayInterleaver
    requests: Requests
    device: torch.device
    stages: int
    tensor_rank: int
    tensor_size: int
    modules: dict[str, Any]
    paths: dict[int, str]
    calls: Calls
    number: int = 0
    replayed: int = 0
    step: _Step | None = None
    tracked: dict[str, int] = field(default_factory=dict)
    batches: dict[int, StepBatch] = field(default_factory=dict)
    errors: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    outgoing: dict[int, LocationNumbers] = field(default_factory=dict)
    incoming: dict[int, LocationNumbers] = field(default_factory=dict)
    failed: bool = False
    bytes_sent: int = 0
    sending: Any = None

    @property
    def stage(self) -> int:
        return self.column.stage

    @property
    def last(self) -> bool:
        return self.stage == self.stages - 1

    @property
    def reports(self) -> bool:
        """Whether this rank, which has seen everything, reports the saved values."""
        return self.last and self.tensor_rank == 0

    # -- before the forward ------------------------------------------------------------

    def begin(self, scheduled: Any) -> None:
        """Start a step: replay the later stages' visits that are due. The earlier stages' visits
        arrive with their activations (see :meth:`accept`).
        """
        self.step, self.failed = None, False
        self._track(scheduled.scheduled_new_reqs)
        traced = [i for i in scheduled.num_scheduled_tokens if i in self.tracked]
        finished = [i for i in scheduled.finished_req_ids if i in self.tracked]
        bound = max((self.tracked[i] for i in (*traced, *finished)), default=0)
        if traced:
            # At most `stages` steps are in flight, so older ones are done.
            bound = max(bound, self.number + 1 - self.stages)
        self.catch_up(bound)
        for request_id in finished:
            del self.tracked[request_id]
            self.ended[request_id] = time.monotonic()
        self._forget_ended()
        if not traced:
            return
        self.number += 1
        self.tracked.update(dict.fromkeys(traced, self.number))
        self.step = _Step(self.number)
        if self.stage:
            self.column.wait(self.stage - 1, self.number)

    def accept(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take the earlier stages' visits out of the activations they sent. A stage that could not
        run the step sends its error instead, so that this stage raises instead of waiting.
        """
        data, body = tensors.pop(RECORD, None), tensors.pop(VALUES, None)
        if data is None or self.step is None:
            return
        if body is None:
            # A tensor from vLLM's shared memory may start at any offset.
            packed = parted(data if data.storage_offset() == 0 else data.clone())
        else:
            packed = Packed(data, body)
        message = self._unpack(packed, self.stage - 1, self.step.number)
        if message.poison is not None:
            self.fail(message.poison)
            raise StageFailedError(message.poison)
        self.step.received = message.visits

    def _track(self, new: Iterable[Any]) -> None:
        for data in new:
            extra = getattr(data.sampling_params, "extra_args", None) or {}
            if self.requests.templates or "nnsight_mediator" in extra:
                self.tracked.setdefault(data.req_id, 0)

    def _forget_ended(self) -> None:
        """Drop the workers of aborted requests, which are never collected."""
        now = time.monotonic()
        for request_id, ended in list(self.ended.items()):
            request = self.requests.requests.get(request_id)
            if request is not None and now - ended < GRACE:
                continue
            del self.ended[request_id]
            self.errors.pop(request_id, None)
            if request is not None:
                for mediator in request.workers():
                    self.requests.finish_dangling(mediator, quiet=True)
                del self.requests.requests[request_id]

    def scoped(self, spans: list[tuple[str, int]]) -> None:
        """Replay the earlier stages on the batch, now known, and start recording this one."""
        interleaver, step = self.interleaver, self.step
        if step is not None:
            members = tuple(
                StepMediator(m, m.batch_group[0], m.batch_group[1], m.row)
                for m in interleaver.mediators
            )
            step.batch = StepBatch(members, interleaver.batcher.total, tuple(i for i, _ in spans))
            for visits in step.received:
                self._replay(visits, step.batch)
        interleaver.log = Visits(self.stage)

    # -- after it ----------------------------------------------------------------------

    def forwarded(self) -> dict[str, torch.Tensor]:
        """End the forward. Return what any stage but the last sends with its activations."""
        step, log = self.step, self.interleaver.log
        if log is not None:
            log.boundary = len(log.locations)
        if self.last or log is None:
            return {}
        self.interleaver.log = None
        if step is None or step.batch is None:
            self._credit([log], None)
            return {}
        visits = (*step.received, log)
        self._credit(visits, step.batch)
        self.interleaver.settle(log)
        self.batches[step.number] = step.batch
        step.told = True
        message = RelayMessage(step.number, visits, self._errors(step.batch))
        return self._pack_for_next(message)

    def handing_on(self) -> None:
        """Announce to the next stage that activations, or an error, are about to be sent. Not
        after sending: what exceeds vLLM's buffer waits for its receiver.
        """
        if self.step is not None and not self.last:
            self.column.ring(self.stage + 1, self.step.number)

    def sampled(self) -> None:
        """End the step on the last stage, and send the earlier stages what they missed."""
        step, log = self.step, self.interleaver.log
        self.interleaver.log = None
        if log is None or not self.last:
            return
        if step is None:
            self._credit([log], None)
            return
        visits = (*step.received, log)
        self._credit(visits, step.batch)
        self.interleaver.settle(log)
        errors = {} if step.batch is None else self._errors(step.batch)
        for stage in range(self.stage):
            missed = tuple(v for v in visits if v.stage > stage)
            self._send(stage, RelayMessage(step.number, missed, errors))
        self.step = None

    def fail(self, reason: str) -> None:
        """Tell the other stages that this stage cannot finish the step, so that none waits."""
        step = self.step
        self.failed, self.interleaver.log = True, None
        if step is None or step.told:
            return
        step.told = True
        poison = RelayMessage(step.number, poison=reason)
        if self.last:
            for stage in range(self.stage):
                self._send(stage, poison)
        else:
            from vllm.distributed.parallel_state import get_pp_group

            # Gloo sends from the tensor that its handle holds, so keep the handle.
            data = self._pack_for_next(poison)
            self.handing_on()
            self.sending = get_pp_group().isend_tensor_dict(data)

    # -- later -------------------------------------------------------------------------

    def catch_up(self, bound: int) -> None:
        """Replay the later stages' visits of the steps up to ``bound``."""
        while not self.last and self.replayed < bound:
            data = parted(self.column.receive(self.stages - 1))
            self.replayed += 1
            message = self._unpack(data, self.stages - 1, self.replayed)
            batch = self.batches.pop(message.step, None)
            if batch is None or message.poison is not None:
                continue
            with placed(self.interleaver, batch), randomness.kept():
                for visits in message.visits:
                    self._replay(visits, batch)
            self._credit(message.visits, batch)

    def collecting(self, finished: set[str]) -> None:
        """Bring the workers of the named requests, which are over, up to their last step."""
        over = [i for i in self.tracked if Request(i).named(finished)]
        self.catch_up(max((self.tracked[i] for i in over), default=0))
        for request_id in over:
            del self.tracked[request_id]

    def collected(self) -> None:
        """Release what the collected requests held."""
        for request_id in self.errors.keys() - self.requests.requests.keys():
            del self.errors[request_id]
        if not self.requests.requests:
            self.interleaver.mediators = []
            self.interleaver.reindex()

    def failures(self, wanted: set[str]) -> dict[str, Any]:
        """Return, by engine id, the errors that only this stage knows. Early stops and unfinished
        reads are left to the reporting stage, whose copy has seen the whole run.
        """
        return {
            request.key(wanted)[0]: error
            for request in self.requests.requests.values()
            if request.named(wanted) and request.id not in self.errors
            if (error := self._error(request)) is not None
        }

    def accept_errors(self, wanted: set[str]) -> None:
        """On the reporting stage, adopt other stages' errors where its own copy has none."""
        for request_id, error in self.errors.items():
            request = self.requests.requests.get(request_id)
            if request is not None and request.named(wanted) and self._died(request) is None:
                request.error = error

    def state(self) -> dict[str, Any]:
        """Return counters that must be zero when no trace is in flight, and two that only grow."""
        self._forget_ended()
        return {
            "stage": self.stage,
            "requests": len(self.requests.requests),
            "tracked": len(self.tracked),
            "unsent": self.column.unsent,
            "records": len(self.batches),
            "errors": len(self.errors),
            "mediators": len(self.interleaver.mediators),
            "steps": self.number,
            "bytes": self.bytes_sent,
        }

    # -- parts -------------------------------------------------------------------------

    def _unpack(self, data: Packed, stage: int, step: int) -> RelayMessage:
        """Return the message of a stage about this step, and note its errors."""
        # All values in one copy to the device: separate copies would cost more than the transfer.
        data = data._replace(body=data.body.to(self.device))
        message = unpack(data, self.incoming.setdefault(stage, LocationNumbers()), self.modules)
        if message.step != step:
            raise RuntimeError(
                f"stage {self.stage} expected step {step} from stage {stage}, got {message.step}"
            )
        self.errors.update(message.errors)
        return message

    def _pack(self, stage: int, message: RelayMessage) -> Packed:
        data = pack(message, self.outgoing.setdefault(stage, LocationNumbers()), self.paths)
        self.bytes_sent += data.head.numel() + data.body.numel()
        return data

    def _pack_for_next(self, message: RelayMessage) -> dict[str, torch.Tensor]:
        """Return a message to the next stage, to be sent along with the activations."""
        data = self._pack(self.stage + 1, message)
        if data.body.is_cuda:
            return {RECORD: self._pad_uneven(data.head), VALUES: self._pad_uneven(data.body)}
        return {RECORD: self._pad_uneven(data.whole)}

    def _pad_uneven(self, data: torch.Tensor) -> torch.Tensor:
        """Append a zero if the number of elements is a multiple of the tensor-parallel size.

        vLLM sends such a tensor in parts, one from each rank, and joins them. The ranks' messages
        differ, so each rank must send its whole tensor.
        """
        if self.tensor_size > 1 and data.numel() % self.tensor_size == 0:
            return torch.cat([data, data.new_zeros(1)])
        return data

    def _send(self, stage: int, message: RelayMessage) -> None:
        self.column.send(stage, self._pack(stage, message).whole)

    def _replay(self, visits: Visits, batch: StepBatch) -> None:
        # A replayed block may call modules of this stage, between two forwards.
        with self.calls.context(self.calls.local):
            differing = replay(self.interleaver, visits, batch, self.device)
        for row, error in differing.items():
            request = self.requests.requests.get(batch.requests[row])
            if request is not None and request.error is None:
                request.error = capture_exception(error)

    def _credit(self, passed: Sequence[Visits], batch: StepBatch | None) -> None:
        """Exclude a step's visits from the counts of workers that took no part in it. Counts belong
        to the interleaver, so a worker's own count is what passed since its start, which is raised.
        """
        inside = set() if batch is None else {id(m.mediator) for m in batch.members}
        for mediator in self.requests.workers():
            if mediator.worker is None or not mediator.alive or id(mediator) in inside:
                continue
            start = mediator.counts_at_start
            for visits in passed:
                for location in visits.locations:
                    start[location] = start.get(location, 0) + 1

    def _died(self, request: Request) -> Any:
        """Return the captured exception that ended one of the request's blocks here, if any."""
        for mediator in request.workers():
            exception = mediator.exception
            if exception is not None and not isinstance(exception, EarlyStopException):
                return capture_exception(exception)
        return None

    def _error(self, request: Request) -> Any:
        died = self._died(request)
        return died if died is not None else request.error

    def _errors(self, batch: StepBatch) -> dict[str, Any]:
        """Return this and the earlier stages' errors in the batch, for the next stage."""
        found = {}
        for request_id in batch.requests:
            request = self.requests.requests.get(request_id)
            error = None if request is None else self._error(request)
            error = error or self.errors.get(request_id)
            if error is not None:
                found[request_id] = error
        return found

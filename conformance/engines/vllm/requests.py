"""Requests to nnsight's VLLM: the adapter they name, nnsight's scope without a trace, aborts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnsight.modeling.vllm import VLLM
from nnsight.tracing.tracer import dec, inc

from conformance.engines.building.adapters import adapter_of

#: The highest LoRA rank that models.yaml may request (`conformance.spec.inputs.usable`).
_MOST_RANK = 64

#: vLLM's request object for the adapter of this process's model, if it has one.
_adapters: list[Any] = []

#: The abort came too late, so the case proves nothing.
NOT_ABORTED = "the request had ended before it could be aborted"


def name_adapter() -> dict[str, Any]:
    """Return vLLM's keywords that name the adapter in a request, if there is one."""
    return {"lora_request": _adapters[0]} if _adapters else {}


class AdaptedVLLM(VLLM):  # type: ignore[misc]
    """nnsight's model, passing the adapter to every invoke, as with its `lora_request=`."""

    def _batch(self, invokes: Sequence[tuple[Any, dict[str, Any]]], fn: Any) -> Any:
        named = [(inputs, {**name_adapter(), **how}) for inputs, how in invokes]
        return super()._batch(named, fn)


def model_class(checkpoint: Path) -> tuple[Any, dict[str, Any]]:
    """Return the class of nnsight's model for a checkpoint with or without an adapter, and vLLM's
    arguments for the adapter.
    """
    adapter = adapter_of(checkpoint)
    if adapter is None:
        return VLLM, {}
    from vllm.lora.request import LoRARequest

    _adapters[:] = [LoRARequest("adapter", 1, str(adapter))]
    return AdaptedVLLM, {"enable_lora": True, "max_loras": 1, "max_lora_rank": _MOST_RANK}


@contextmanager
def trace_scope() -> Iterator[None]:
    """Open nnsight's trace scope on this thread, for a request without a trace.

    An engine in the client's process shares its thread. For a request without a block, nnsight's
    runner opens the scope and leaves it open. From then on the ids of saved objects are not cleared
    between traces, and an object at a reused address is returned by mistake (seen: `Can't pickle
    local object`, in one of a few hundred traces).
    """
    inc()
    try:
        yield
    finally:
        dec()


@contextmanager
def aborting(engine: Any, index: int, after: int) -> Iterator[None]:
    """Abort one request of a synchronous engine's next `generate`, once it has `after` tokens.

    It calls vLLM's `abort_request` between two steps: `generate` returns only after the last
    request, so a client has no other chance to abort.
    """
    step, requests = engine.step, engine.output_processor.request_states
    members: list[str] = []
    aborted = False

    def step_and_abort() -> Any:
        nonlocal aborted
        if not members:
            members.extend(requests)
        outputs = step()
        state = requests.get(members[index])
        if state is not None and state.detokenizer.num_output_tokens() >= after:
            engine.abort_request([members[index]], internal=True)
            aborted = True
        return outputs

    engine.step = step_and_abort
    try:
        yield
    finally:
        del engine.step
    if not aborted:
        raise RuntimeError(NOT_ABORTED)

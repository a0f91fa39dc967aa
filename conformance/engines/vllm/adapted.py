"""Models with a LoRA adapter on vLLM: every request names it, as with nnsight's `lora_request=`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnsight.modeling.vllm import VLLM

from conformance.engines.building.adapters import adapter_of

#: The highest rank that models.yaml may request (`conformance.inputs.usable`).
_MOST_RANK = 64

#: vLLM's request object for the adapter of this process's model, if it has one.
_requests: list[Any] = []


def asked_for(checkpoint: Path) -> dict[str, Any]:
    """Return vLLM's arguments for an engine that loads the checkpoint's adapter, if any."""
    if adapter_of(checkpoint) is None:
        return {}
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": _MOST_RANK}


class AdaptedVLLM(VLLM):  # type: ignore[misc]
    """nnsight's model, passing the adapter to every invoke."""

    def _batch(self, invokes: Sequence[tuple[Any, dict[str, Any]]], fn: Any) -> Any:
        named = [(inputs, {**of_a_request(), **how}) for inputs, how in invokes]
        return super()._batch(named, fn)


def kind(checkpoint: Path) -> Any:
    """Return the class of nnsight's model, which passes the checkpoint's adapter to every invoke if
    there is one.
    """
    adapter = adapter_of(checkpoint)
    if adapter is None:
        return VLLM
    from vllm.lora.request import LoRARequest

    _requests[:] = [LoRARequest("adapter", 1, str(adapter))]
    return AdaptedVLLM


def of_a_request() -> dict[str, Any]:
    """Return vLLM's keywords that name the adapter, for a request without a block."""
    return {"lora_request": _requests[0]} if _requests else {}

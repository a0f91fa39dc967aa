"""A model with an adapter on vLLM: every request names it, as nnsight's `lora_request=` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnsight.modeling.vllm import VLLM

from conformance.engines.building.adapters import adapter_of

#: The highest rank that models.yaml may ask for (`conformance.inputs.usable`).
_MOST_RANK = 64

#: vLLM's record of the adapter of this process's model, where it has one.
_requests: list[Any] = []


def asked_for(checkpoint: Path) -> dict[str, Any]:
    """vLLM's own words for an engine that takes the checkpoint's adapter, where it has one."""
    if adapter_of(checkpoint) is None:
        return {}
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": _MOST_RANK}


class AdaptedVLLM(VLLM):  # type: ignore[misc]
    """nnsight's model, each of whose invokes is given the adapter."""

    def _batch(self, invokes: Sequence[tuple[Any, dict[str, Any]]], fn: Any) -> Any:
        named = [(inputs, {**of_a_request(), **how}) for inputs, how in invokes]
        return super()._batch(named, fn)


def kind(checkpoint: Path) -> Any:
    """The class of nnsight's model: its own, or one each of whose invokes has the checkpoint's
    adapter.
    """
    adapter = adapter_of(checkpoint)
    if adapter is None:
        return VLLM
    from vllm.lora.request import LoRARequest

    _requests[:] = [LoRARequest("adapter", 1, str(adapter))]
    return AdaptedVLLM


def of_a_request() -> dict[str, Any]:
    """The adapter in vLLM's keywords, for a request without a block."""
    return {"lora_request": _requests[0]} if _requests else {}

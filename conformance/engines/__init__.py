"""The engines: the only place that imports transformers, nnsight or vLLM.

`ENGINES` names them; nothing here is imported until a worker opens one, so the
parent needs none of them installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from conformance.records import Case, Group
from conformance.scenario import Scenario

#: Engine name in models.yaml → `module:function` that opens it from a Job.
ENGINES: Mapping[str, str] = {
    "hf": "conformance.engines.hf:open_engine",
    "vllm": "conformance.engines.vllm:open_engine",
    "vllm-async": "conformance.engines.vllm_async:open_engine",
    "vllm-serve": "conformance.engines.vllm_serve:open_engine",
    "reference": "conformance.engines.reference:open_engine",
    "build": "conformance.engines.weights:open_engine",
}

#: What takes the requests of those that run on vLLM, in its own words.
FRONTS: Mapping[str, str] = {
    "vllm": "LLM",
    "vllm-async": "AsyncLLM",
    "vllm-serve": "nnsight-vllm-serve",
}

_PRELOAD: Mapping[str, str] = {
    "hf": "conformance.engines.preload_hf",
    "vllm": "conformance.engines.preload_vllm",
    "vllm-async": "conformance.engines.preload_vllm",
    "vllm-serve": "conformance.engines.preload_vllm",
    "reference": "conformance.engines.preload_hf",
    "build": "conformance.engines.preload_hf",
}


def preload(engine: str) -> str:
    """The module a zygote imports once, so that its forked workers need not; "" for none.

    HF and vLLM never share a process: vLLM's Transformers backend patches transformers'
    classes. With a GPU each worker imports for itself: CUDA's driver starts a thread when it
    is asked for devices, and what it opened cannot be used in a forked process.
    """
    import torch

    return "" if torch.cuda.is_available() else _PRELOAD.get(engine, "")


class Refused(Exception):
    """The engine, or nnsight, says that it cannot do this: its own words, kept verbatim."""


class Unreadable(Exception):
    """The residual stream's layout could not be settled: what was tried, and how far off."""


class Engine(Protocol):
    """What a worker needs of an engine. Opening it is the load."""

    def group(self) -> Group:
        """What was really loaded: identity, versions, layout and how it was found."""
        ...

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        """The scenario's observations by `str(Site)`, as torch tensors on the CPU.

        Raises `Refused` for what cannot be done, `Unreadable` when the stream's
        layout is not settled; anything else is an error of the trace.
        """
        ...

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        """The token ids the engine's own tokenizer makes of the case's prompts."""
        ...

    def close(self) -> None: ...

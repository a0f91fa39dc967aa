"""nnsight's own worker for CUDA with the identity RPC, imported by name in the engine."""

from __future__ import annotations

from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker

from conformance.engines.identity import IdentityRPC


class GPUTraceWorker(IdentityRPC, NNsightGPUWorker):  # type: ignore[misc]
    """As released, plus ``conformance_identity``."""

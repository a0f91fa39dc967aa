"""nnsight's own worker for CUDA with the harness's RPC methods, imported by name in the engine."""

from __future__ import annotations

from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker

from conformance.engines.vllm import patches
from conformance.engines.vllm.worker_rpc import IdentityRPC, WatchRPC


class GPUTraceWorker(IdentityRPC, WatchRPC, NNsightGPUWorker):  # type: ignore[misc]
    """As released, plus the harness's own RPC methods."""

    def init_device(self) -> None:
        super().init_device()
        patches.apply(patches.Place.WORKER)

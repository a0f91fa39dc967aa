"""nnsight's own worker for CUDA with the harness's RPC methods, imported by name in the engine."""

from __future__ import annotations

import torch
from nnsight.modeling.vllm.model_runners.GPUModelRunner import NNsightGPUModelRunner
from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker

from conformance.engines.float32_products import whole_products
from conformance.engines.vllm import patches
from conformance.engines.vllm.hook_canary import WatchedRunner
from conformance.engines.vllm.inside.worker_rpc import BlockRPC, IdentityRPC, WatchRPC
from conformance.processes import temporary
from conformance.records import Precision


class GPUTraceRunner(WatchedRunner, NNsightGPUModelRunner):  # type: ignore[misc]
    """nnsight's runner as released, whose hooks are watched."""


class GPUTraceWorker(BlockRPC, IdentityRPC, WatchRPC, NNsightGPUWorker):  # type: ignore[misc]
    """As released, plus the harness's own RPC methods."""

    def init_device(self) -> None:
        temporary.name_shared()  # not forked from a process that did
        super().init_device()
        self.model_runner.__class__ = GPUTraceRunner
        if self.model_config.dtype is torch.float32:
            # Torch's switches are of this process; the rest came with the environment.
            whole_products(Precision.FLOAT32)
        patches.apply(patches.Place.WORKER)

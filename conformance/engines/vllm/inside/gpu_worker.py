"""nnsight's own CUDA worker with the harness's RPC methods, imported by name in the engine."""

from __future__ import annotations

import torch
from nnsight.modeling.vllm.model_runners.GPUModelRunner import NNsightGPUModelRunner
from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker

from conformance.engines.float32_products import whole_products
from conformance.engines.vllm import patches
from conformance.engines.vllm.hook_canary import WatchedRunner
from conformance.engines.vllm.inside.worker_rpc import HarnessRPC
from conformance.engines.vllm.relay.runner import RelayRunner, RelayWorker
from conformance.runner.processes import temporary
from conformance.spec.records import Precision


class GPUTraceRunner(WatchedRunner, NNsightGPUModelRunner):  # type: ignore[misc]
    """nnsight's released runner with watched hooks."""


class GPUTraceWorker(HarnessRPC, NNsightGPUWorker):  # type: ignore[misc]
    """nnsight's released worker with the harness's RPC methods."""

    runner_class: type = GPUTraceRunner

    def init_device(self) -> None:
        temporary.name_shared()  # this process was not forked from one that did so
        super().init_device()
        self.model_runner.__class__ = self.runner_class
        if self.model_config.dtype is torch.float32:
            # Torch's switches are per process; the other settings came with the environment.
            whole_products(Precision.FLOAT32)
        patches.apply(patches.PatchPlace.WORKER)


class RelayGPURunner(RelayRunner, GPUTraceRunner):
    """nnsight's runner on CUDA, with the relay."""


class RelayGPUWorker(RelayWorker, GPUTraceWorker):
    """nnsight's CUDA worker, with the relay."""

    runner_class = RelayGPURunner

"""The relay on vLLM's CUDA worker, imported by name in the engine's processes."""

from __future__ import annotations

from conformance.engines.vllm.inside.gpu_worker import GPUTraceRunner, GPUTraceWorker
from conformance.engines.vllm.relay.runner import RelayRunner
from conformance.engines.vllm.relay.worker import RelayWorker


class RelayGPURunner(RelayRunner, GPUTraceRunner):
    """nnsight's runner on CUDA, with the relay."""


class RelayGPUWorker(RelayWorker, GPUTraceWorker):
    """vLLM's CUDA worker, with the relay."""

    relay_runner_class = RelayGPURunner

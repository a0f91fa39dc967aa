"""The relay on vLLM's CPU worker, imported by name in the engine's processes."""

from __future__ import annotations

from conformance.engines.vllm.inside.cpu_worker import CPUTraceRunner, CPUTraceWorker
from conformance.engines.vllm.relay.runner import RelayRunner
from conformance.engines.vllm.relay.worker import RelayWorker


class RelayCPURunner(RelayRunner, CPUTraceRunner):
    """nnsight's runner on the CPU, with the relay."""


class RelayCPUWorker(RelayWorker, CPUTraceWorker):
    """vLLM's CPU worker, with the relay."""

    relay_runner_class = RelayCPURunner

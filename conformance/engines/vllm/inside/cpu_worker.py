"""The worker classes for the CPU, imported by name in the engine's processes.

nnsight's own worker accepts only vLLM's ``GPUModelRunner``, and on the CPU vLLM builds a subclass
of it. The subclass gets nnsight's behaviour in nnsight's own way: by replacing the class of the
runner after it is built.
"""

from __future__ import annotations

import os
from typing import Any

from nnsight.modeling.vllm.model_runners.GPUModelRunner import NNsightGPUModelRunner
from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from conformance.engines.vllm import patches
from conformance.engines.vllm.hook_canary import WatchedRunner
from conformance.engines.vllm.inside.worker_rpc import HarnessRPC
from conformance.engines.vllm.relay.runner import RelayRunner, RelayWorker
from conformance.runner.processes import sessions, temporary
from conformance.worker import process_state


class CPUTraceRunner(WatchedRunner, NNsightGPUModelRunner, CPUModelRunner):  # type: ignore[misc]
    """nnsight's runner on top of vLLM's CPU runner."""

    intermediate_tensors: Any

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load, and allocate the tensors that a later stage receives. Only vLLM's compile warm-up
        does so, which an eager engine has not: its first step would fail an assertion.
        """
        from vllm.distributed.parallel_state import get_pp_group

        super().load_model(*args, **kwargs)
        if not get_pp_group().is_first_rank and self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens,
                dtype=self.model_config.dtype,
                device=self.device,
            )


class CPUTraceWorker(HarnessRPC, CPUWorker):  # type: ignore[misc]
    """vLLM's CPU worker with nnsight's runner and RPC methods."""

    runner_class: type = CPUTraceRunner

    def init_device(self) -> None:
        super().init_device()
        # Recorded now: if the load fails later, this process may end before anything can ask it.
        temporary.note_shared(sorted(sessions.shared_files([os.getpid()])))
        if type(self.model_runner) is not CPUModelRunner:
            raise NotImplementedError(
                f"expected vLLM's CPUModelRunner, got {type(self.model_runner).__qualname__}"
            )
        self.model_runner.__class__ = self.runner_class
        patches.apply(patches.PatchPlace.WORKER)

    # The RPC methods only use `self.model_runner`, so they are copied. nnsight's worker cannot be a
    # base class, since it derives from the GPU worker and CPUWorker does not.
    nnsight_request_count = NNsightGPUWorker.nnsight_request_count
    nnsight_register = NNsightGPUWorker.nnsight_register
    nnsight_clear_registered = NNsightGPUWorker.nnsight_clear_registered

    def collect_nnsight(self, *args: Any, **kwargs: Any) -> Any:
        """Collect a block's values, which runs the rest of the block."""
        with process_state.raising_instead_of_exiting():
            return NNsightGPUWorker.collect_nnsight(self, *args, **kwargs)


class RelayCPURunner(RelayRunner, CPUTraceRunner):
    """nnsight's runner on the CPU, with the relay."""


class RelayCPUWorker(RelayWorker, CPUTraceWorker):
    """vLLM's CPU worker, with the relay."""

    runner_class = RelayCPURunner

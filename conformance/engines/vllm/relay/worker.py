"""The relay on a vLLM worker; mixed in ahead of the CPU or CUDA worker."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch
from nnsight.tracing.tracer import _local, inc

from conformance.engines.vllm.relay.stage import Relay
from conformance.worker import process_state


class RelayWorker:
    """Changes the runner's class and wraps each step."""

    relay_runner_class: type
    model_runner: Any

    def init_device(self) -> None:
        """Let vLLM and nnsight build the runner, then give it the relay's class."""
        super().init_device()  # type: ignore[misc]
        self.model_runner.__class__ = self.relay_runner_class

    @property
    def _relay(self) -> Relay:
        relay: Relay = self.model_runner.relay
        return relay

    @torch.inference_mode()
    def execute_model(self, scheduler_output: Any) -> Any:
        """Run one step. If it raises, tell the other stages before any of them waits."""
        if not getattr(_local, "depth", 0):
            inc()  # replaying runs blocks, whose `.save()` needs an open trace on this thread
        relay = self._relay
        try:
            with process_state.raising_instead_of_exiting():
                relay.begin(scheduler_output)
                return super().execute_model(scheduler_output)  # type: ignore[misc]
        except BaseException as error:
            relay.fail(f"stage {relay.stage}: {type(error).__name__}: {error}")
            raise

    def conformance_begin(self) -> None:
        """Begin a cell: drop fetched weights, which another cell may have written to."""
        super().conformance_begin()  # type: ignore[misc]
        self.model_runner.fetched.forget()

    def conformance_relay_state(self) -> dict[str, Any]:
        """Return the relay's counters on this rank (see :meth:`Relay.state`)."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident = pages * resource.getpagesize()
        return {**self._relay.state(), "resident": resident}

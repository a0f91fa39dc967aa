"""The relay on a vLLM worker; mixed in before the CPU or the CUDA worker."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch
from nnsight.tracing.tracer import _local, inc

from conformance.engines.vllm.relay.stage import Relay
from conformance.worker import process_state


class RelayWorker:
    """Exchanges the runner's class and stands around each step."""

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
        """One step. If it raises, the other stages are told before anybody waits for them."""
        if not getattr(_local, "depth", 0):
            inc()  # replaying runs blocks, whose `.save()` needs a trace open on this thread
        relay = self._relay
        try:
            with process_state.raising_instead_of_exiting():
                relay.begin(scheduler_output)
                return super().execute_model(scheduler_output)  # type: ignore[misc]
        except BaseException as error:
            relay.fail(f"stage {relay.stage}: {type(error).__name__}: {error}")
            raise

    def conformance_begin(self) -> None:
        """A cell begins: what it fetches of other stages no other cell has written to."""
        super().conformance_begin()  # type: ignore[misc]
        self.model_runner.fetched.forget()

    def conformance_relay_state(self) -> dict[str, Any]:
        """The relay's counters on this rank (see :meth:`Relay.state`)."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident = pages * resource.getpagesize()
        return {**self._relay.state(), "resident": resident}

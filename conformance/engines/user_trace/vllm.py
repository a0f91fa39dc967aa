"""A user's function on vLLM: its values, and what the layers computed meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.engines.refusals import refused
from conformance.engines.user_trace import sequences, user_file
from conformance.engines.vllm import cpu
from conformance.engines.vllm.engine import VLLMEngine
from conformance.records import Case, Job
from conformance.scenario import Scenario


class CheckedVLLM(VLLMEngine):
    """`trace(lm)` gets the adapter of a scenario, `vllm(model)` nnsight's own model."""

    def __init__(self, job: Job, functions: user_file.Functions) -> None:
        super().__init__(job)
        self.functions = functions

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        """By site what the function returned, and as `layers|site` what the layers computed."""
        function = self.functions.of(case)
        model = self.lm if case.options["function"] == "trace" else self.model
        self._everywhere(sequences.begin_on_vllm, self.path, self.settled.layout)
        self._everywhere(bound_process, user_file.room_for(self.job))
        try:
            with user_file.bounded_memory(self.job):
                found = self.with_hooks(lambda: user_file.call(function, model, case.prompts))
        except Exception as error:
            raise refused(error) or error from error
        finally:
            seen = sequences.unpacked(self._everywhere(sequences.end_on_vllm))
        return found | {f"layers|{site}": value for site, value in seen.items()}

    def close(self) -> None:
        """End at once: all that was observed is written, and an orderly shutdown of vLLM takes
        seconds for which somebody waits. The runner ends the engine's other processes.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _everywhere(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What this function gives for the worker of every process of the engine."""
        engine = self.model.vllm_entrypoint.llm_engine
        return list(engine.collective_rpc(function, args=args))


def bound_process(worker: Any, room: int) -> None:
    """In a process of the engine: what a block allocates without end fails there."""
    user_file.bound_memory(room)


def open_engine(job: Job) -> CheckedVLLM:
    functions = user_file.Functions(job.cases)
    if not torch.cuda.is_available():
        cpu.prepare(fork=True)
    return CheckedVLLM(job, functions)

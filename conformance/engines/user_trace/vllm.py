"""A user's function on vLLM: its values, and what the layers computed meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from conformance.engines.refusals import refused
from conformance.engines.user_trace import sequences, user_file
from conformance.engines.vllm import client
from conformance.engines.vllm.engine import VLLMEngine
from conformance.spec.records import Case, Job
from conformance.spec.scenario import Scenario


class CheckedVLLM(VLLMEngine):
    """An engine that gives `trace(lm)` a scenario's adapter, `vllm(model)` nnsight's own model."""

    def __init__(self, job: Job, functions: user_file.Functions) -> None:
        super().__init__(job)
        self.functions = functions

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        """Return by site the function's values and, as `layers|site`, what the layers computed."""
        function = self.functions.of(case)
        model = self.lm if case.options["function"] == "trace" else self.model
        room = user_file.room_for(self.job)
        # An endless allocation by a block must fail in the engine's processes too.
        self._everywhere(lambda _: user_file.bound_memory(room))
        try:
            with user_file.bounded_memory(self.job):
                return self.with_hooks(lambda: self._seen(function, model, case.prompts))
        except Exception as error:
            raise refused(error) or error from error

    def _seen(
        self, function: user_file.Function, model: Any, prompts: Sequence[str]
    ) -> dict[str, Tensor]:
        self._everywhere(sequences.begin_on_vllm, self.path, self.settled.layout)
        try:
            found = user_file.call(function, model, prompts)
        except Exception:
            with suppress(Exception):  # the engine may have died; the raised error says why
                self._everywhere(sequences.end_on_vllm)
            raise
        seen = sequences.unpacked(self._everywhere(sequences.end_on_vllm))
        return found | {f"layers|{site}": value for site, value in seen.items()}

    def _first_outputs(self, count: int) -> list[Any]:
        outputs = super()._first_outputs(count)
        self.resident = self._resident()
        return outputs

    def still_well(self) -> bool:
        """Return whether, after a trace failed, no request is unfinished, no memory was kept, and
        the engine computes the same on the probe prompt as when it was loaded.
        """
        if self.obstacle or self.model.vllm_entrypoint.llm_engine.has_unfinished_requests():
            return False
        same, both = self.unchanged(), zip(self.resident, self._resident(), strict=True)
        kept = max(held - before for before, held in both)
        return kept < user_file.KEPT_BYTES and same

    def _resident(self) -> list[int]:
        """Return the resident memory of every process of the engine, in bytes."""
        return self._everywhere(lambda _: user_file.resident())

    def close(self) -> None:
        """Exit at once: all observations are written, and an orderly shutdown of vLLM takes seconds
        that the user waits for. The runner ends the engine's other processes.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _everywhere(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run this function in every worker process of the engine and return the results."""
        engine = self.model.vllm_entrypoint.llm_engine
        return list(engine.collective_rpc(function, args=args))


def open_engine(job: Job) -> CheckedVLLM:
    functions = user_file.Functions(job.cases)
    client.prepare()
    return CheckedVLLM(job, functions)

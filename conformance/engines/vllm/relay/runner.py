"""The relay on nnsight's model runner and on vLLM's worker, mixed in ahead of those of the CPU and
of CUDA (see `inside`).
"""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from nnsight.intervention.source import STATE
from nnsight.modeling.vllm.collect import dumps_compact
from nnsight.modeling.vllm.model_runners.GPUModelRunner import Requests
from nnsight.tracing.tracer import _local, inc

from conformance.engines.vllm import patches
from conformance.engines.vllm.relay import placeholders, randomness, weights
from conformance.engines.vllm.relay.calls import Calls
from conformance.engines.vllm.relay.replay import adopt
from conformance.engines.vllm.relay.stage import Relay
from conformance.engines.vllm.relay.transport import RankPipeline
from conformance.worker import process_state


class RelayRequests(Requests):  # type: ignore[misc]
    """nnsight's request table, which notifies the relay.

    The class of a loaded runner's table is changed to this one; ``relay`` is then set.
    """

    relay: Relay
    out: set[Any]

    def add(self, new_requests: list[Any], persistent_objects: dict[str, Any]) -> None:
        """Add new requests, and give their workers separate random states."""
        super().add(new_requests, persistent_objects)
        for data in new_requests:
            request = self.requests[data.req_id]
            workers = [(str(index), copy) for index, copy in enumerate(request.copies.values())]
            for name, mediator in [*workers, ("trace", request.mediator)]:
                if mediator is not None and mediator.worker is None:
                    randomness.adopt(mediator, data.req_id, name, self.relay.device)

    def scope(self, model: Any, spans: list[tuple[str, int]]) -> None:
        """Point the workers at their rows, then let the relay replay the earlier stages."""
        # nnsight lists in `out` the workers that sit a step out, from counts that the relay changes
        # at other times; `Relay._credit` handles every visit instead.
        self.out = set()
        super().scope(model, spans)
        self.out = set()
        self.relay.scoped(spans)


class RelayRunner:
    """Runs every block on every stage and reports from the last."""

    relay: Relay
    fetched: weights.Owners
    # The runner's own:
    device: torch.device
    nnsight_model: Any
    nnsight_persistent_objects: dict[str, Any]
    nnsight_requests: Any
    vllm_config: Any

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load, then map this stage's modules to the whole model."""
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        if self.vllm_config.scheduler_config.async_scheduling:
            raise ValueError("interventions across stages need async_scheduling=False")
        if not self.vllm_config.model_config.enforce_eager:
            raise ValueError("interventions across stages need an eager engine (no taps)")
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        stages, tensor = get_pp_group(), get_tp_group()
        column = RankPipeline(
            stages.rank_in_group, tensor.rank_in_group, stages.world_size, tensor.world_size
        )
        interleaver = self.nnsight_model.interleaver
        whole, config = placeholders.whole_model(self.vllm_config)
        tree = placeholders.tree(self.nnsight_model._module, whole)
        calls = Calls(whole, config, self.vllm_config, self.device)
        self.fetched = weights.Owners(column, tree, self.device)
        spanning = frozenset().union(*self.fetched.spanning)
        first, last = stages.is_first_rank, stages.is_last_rank
        adopt(interleaver, placeholders.elsewhere(spanning, tree.absent, first=first, last=last))
        for path, module in tree.here.items():
            state = module.__dict__.get(STATE)
            if state is not None:
                # A module shared by several paths has one name in the whole model, which may be
                # that of a layer on another stage.
                state.register(interleaver, path)
        modules = self._modules_by_path(tree, calls)
        self.nnsight_persistent_objects.update(modules)
        self.nnsight_requests.__class__ = RelayRequests
        self.relay = self.nnsight_requests.relay = Relay(
            column=column,
            interleaver=interleaver,
            requests=self.nnsight_requests,
            device=self.device,
            stages=stages.world_size,
            tensor_rank=tensor.rank_in_group,
            tensor_size=tensor.world_size,
            modules=modules,
            paths={id(module): name for name, module in modules.items()},
            calls=calls,
        )
        patches.apply(patches.PatchPlace.RELAY, reports=self.relay.reports)

    def _modules_by_path(self, tree: placeholders.Tree, calls: Calls) -> dict[str, Any]:
        """Return all stages' modules by their persistent ids: this stage's own, and copies."""
        fragments = self.nnsight_model.interleaver.fragments
        modules = {
            name: module
            for name, module in self.nnsight_persistent_objects.items()
            if name.startswith("Module:")
        }
        for path, canonical in tree.canonical.items():
            module = tree.here.get(canonical)
            if module is None:
                module = tree.whole[canonical]
                placeholders.make_remote(module, canonical, self.fetched.fetch, calls)
                if fragments is not None:
                    # A block that calls it needs the full tensors, not a rank's share.
                    fragments.instrument(SimpleNamespace(path=path, _module=module))
            modules[f"Module:{path}"] = module
        return modules

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        """Run the step's forward, and send the record to the next stage."""
        if intermediate_tensors is not None:
            self.relay.accept(intermediate_tensors.tensors)
        with randomness.kept():
            output = super().execute_model(scheduler_output, intermediate_tensors)  # type: ignore[misc]
        if scheduler_output.total_num_scheduled_tokens:
            if record := self.relay.forwarded():
                output.tensors.update(record)
            self.relay.handing_on()
        return output

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Sample, then send the earlier stages the visits they missed."""
        if self.relay.failed:
            # For vLLM, None means that the forward failed, and it raises that error. Any other
            # value would be read as the output of a step that did not run.
            return None
        try:
            output = super().sample_tokens(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            self.relay.fail(f"stage {self.relay.stage}: {type(error).__name__}: {error}")
            raise
        self.relay.sampled()
        return output

    def collect_nnsight(
        self,
        request_ids: list[str],
        finished_request_ids: list[str] | None = None,
        outputs: dict[str, Any] | None = None,
    ) -> bytes | None:
        """Return the saved values on the reporting rank; on others, errors only they have."""
        finished = set(finished_request_ids or [])
        wanted = set(request_ids) | finished
        relay = self.relay
        failures: dict[str, Any] = {}
        with torch.inference_mode():
            relay.collecting(finished)
            if relay.reports:
                relay.accept_errors(wanted)
            else:
                failures = relay.failures(wanted)
            payload: bytes | None = super().collect_nnsight(  # type: ignore[misc]
                request_ids, finished_request_ids, outputs
            )
            relay.collected()
        if relay.reports:
            return payload
        nothing: dict[str, Any] = {"saves": {}, "registered": {}, "sequences": {}}
        errors = {name: {**nothing, "error": error} for name, error in failures.items()}
        return bytes(dumps_compact(errors)) if errors else None


class RelayWorker:
    """Wraps each step of a worker whose ``runner_class`` has the relay."""

    model_runner: Any

    @torch.inference_mode()
    def execute_model(self, scheduler_output: Any) -> Any:
        """Run one step. If it raises, tell the other stages before any of them waits."""
        if not getattr(_local, "depth", 0):
            inc()  # replaying runs blocks, whose `.save()` needs an open trace on this thread
        relay: Relay = self.model_runner.relay
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
        return {**self.model_runner.relay.state(), "resident": pages * resource.getpagesize()}

"""The relay on nnsight's model runner; mixed in ahead of it, on the CPU and on CUDA."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from nnsight.intervention.source import STATE
from nnsight.modeling.vllm.collect import dumps_compact

from conformance.engines.vllm import patches
from conformance.engines.vllm.relay import placeholders, randomness, weights
from conformance.engines.vllm.relay.calls import Calls
from conformance.engines.vllm.relay.replay import adopt
from conformance.engines.vllm.relay.requests import RelayRequests
from conformance.engines.vllm.relay.stage import Relay
from conformance.engines.vllm.relay.transport import RankPipeline


class RelayRunner:
    """Runs every block on every stage and reports from the last."""

    relay: Relay

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load, then map this stage's modules to the whole model."""
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        self._check_configuration()
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        stages, tensor = get_pp_group(), get_tp_group()
        column = RankPipeline(
            stages.rank_in_group, tensor.rank_in_group, stages.world_size, tensor.world_size
        )
        self._start_relay(column, stages.world_size, tensor)

    def _check_configuration(self) -> None:
        config = self.vllm_config  # type: ignore[attr-defined]
        if config.scheduler_config.async_scheduling:
            raise ValueError("interventions across stages need async_scheduling=False")
        if not config.model_config.enforce_eager:
            raise ValueError("interventions across stages need an eager engine (no taps)")

    def _start_relay(self, column: RankPipeline, stages: int, tensor: Any) -> None:
        model, interleaver = self.nnsight_model, self.nnsight_model.interleaver  # type: ignore[attr-defined]
        whole, config = placeholders.whole_model(self.vllm_config)  # type: ignore[attr-defined]
        tree = placeholders.tree(model._module, whole)
        calls = Calls(whole, config, self.vllm_config, self.device)  # type: ignore[attr-defined]
        owners = weights.Owners(column, tree, self.device)  # type: ignore[attr-defined]
        self.fetched = owners
        spanning = frozenset().union(*owners.spanning)
        first, last = column.stage == 0, column.stage == stages - 1
        adopt(interleaver, placeholders.elsewhere(spanning, tree.absent, first=first, last=last))
        for path, module in tree.here.items():
            state = module.__dict__.get(STATE)
            if state is not None:
                # A module shared by several paths has one name in the whole model, which may be
                # that of a layer on another stage.
                state.register(interleaver, path)
        objects = self.nnsight_persistent_objects  # type: ignore[attr-defined]
        for path, canonical in tree.canonical.items():
            if canonical in tree.here:
                module = tree.here[canonical]
            else:
                module = placeholders.remote(tree.whole[canonical], canonical, owners.fetch, calls)
                if interleaver.fragments is not None:
                    # A block that calls it needs the full tensors, not a rank's share.
                    interleaver.fragments.instrument(SimpleNamespace(path=path, _module=module))
            objects[f"Module:{path}"] = module
        requests = self.nnsight_requests  # type: ignore[attr-defined]
        requests.__class__ = RelayRequests
        modules = {key: value for key, value in objects.items() if key.startswith("Module:")}
        self.relay = requests.relay = Relay(
            column=column,
            interleaver=interleaver,
            requests=requests,
            device=self.device,  # type: ignore[attr-defined]
            stages=stages,
            tensor_rank=tensor.rank_in_group,
            tensor_size=tensor.world_size,
            modules=modules,
            paths={id(value): key for key, value in modules.items()},
            calls=calls,
        )
        patches.apply(patches.PatchPlace.RELAY, reports=self.relay.reports)

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        """Run the step's forward, and send the record to the next stage."""
        if intermediate_tensors is not None:
            self.relay.accept(intermediate_tensors.tensors)
        with randomness.kept():
            output = super().execute_model(scheduler_output, intermediate_tensors)  # type: ignore[misc]
        if scheduler_output.total_num_scheduled_tokens:
            beside = self.relay.forwarded()
            if beside:
                output.tensors.update(beside)
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
        with torch.inference_mode():
            relay.collecting(finished)
            if relay.reports:
                relay.accept_errors(wanted)
                payload: bytes | None = self._collect(request_ids, finished_request_ids, outputs)
            else:
                failures = relay.failures(wanted)
                self._collect(request_ids, finished_request_ids, outputs)
                payload = _errors_only(failures)
            relay.collected()
        return payload

    def _collect(self, *args: Any) -> bytes | None:
        payload: bytes | None = super().collect_nnsight(*args)  # type: ignore[misc]
        return payload


def _errors_only(failures: dict[str, Any]) -> bytes | None:
    if not failures:
        return None
    empty: dict[str, Any] = {"saves": {}, "registered": {}, "sequences": {}}
    payload: bytes = dumps_compact({i: {**empty, "error": e} for i, e in failures.items()})
    return payload

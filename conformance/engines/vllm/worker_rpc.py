"""What an engine says it is, asked on every rank, so that no column is taken on trust."""

from __future__ import annotations

from typing import Any


def _layers_held(model: Any, runner: Any, rank: int, size: int) -> list[int]:
    """The half-open range of decoder layers this rank built.

    vLLM's models note it on the module that holds the layer list; one which does not is
    answered with the split vLLM would compute.
    """
    for module in model.modules():
        start, end = getattr(module, "start_layer", None), getattr(module, "end_layer", None)
        if isinstance(start, int) and isinstance(end, int):
            return [start, end]
    from vllm.distributed.utils import get_pp_indices

    start, end = get_pp_indices(runner.model_config.get_total_num_hidden_layers(), rank, size)
    return [int(start), int(end)]


def pipeline_place() -> tuple[int, int]:
    """This process's stage, and how many there are."""
    from vllm.distributed.parallel_state import get_pp_group

    group = get_pp_group()
    return group.rank_in_group, group.world_size


def _served(runner: Any, stages: int) -> str:
    """Who carries values between stages: "none", nnsight itself ("native") or the "relay"."""
    if stages == 1:
        return "none"
    if getattr(runner, "relay", None) is not None:
        return "relay"
    return "native" if getattr(runner, "nnsight_pp", None) is not None else "none"


def identity(worker: Any) -> dict[str, Any]:
    """Facts about the engine as seen from one rank, in plain values only."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    runner = worker.model_runner
    config = runner.vllm_config
    pipeline, tensor = get_pp_group(), get_tp_group()
    return {
        "pipeline_rank": pipeline.rank_in_group,
        "pipeline_size": pipeline.world_size,
        "tensor_rank": tensor.rank_in_group,
        "tensor_size": tensor.world_size,
        "eager": bool(config.model_config.enforce_eager),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
        "extraction": getattr(config.speculative_config, "method", "") == "extract_hidden_states",
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "device": str(runner.device.type),
        "dtype": str(runner.model_config.dtype),
        "runner": f"{type(runner).__module__}.{type(runner).__name__}",
        "model": type(runner.get_model()).__name__,
        "layers": _layers_held(
            runner.get_model(), runner, pipeline.rank_in_group, pipeline.world_size
        ),
        "total_layers": int(runner.model_config.get_total_num_hidden_layers()),
        "vocabulary": int(runner.model_config.get_vocab_size()),
        "served": _served(runner, pipeline.world_size),
    }


class IdentityRPC:
    """Mixed into a worker: answers ``collective_rpc("conformance_identity")``."""

    def conformance_identity(self) -> dict[str, Any]:
        """See :func:`identity`."""
        return identity(self)

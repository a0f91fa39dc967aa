"""RPC methods of the harness in every process of an engine: its identity, and plain hooks.

Every rank answers, so that a column's configuration is verified.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from conformance.engines.float32_products import products
from conformance.engines.probing.watching import Streams, watched
from conformance.engines.structure import tensors_in
from conformance.engines.tree import follow
from conformance.engines.vllm.hook_canary import Hooks, output_locations
from conformance.worker import process_state

#: Cache dtypes that can be summed directly.
_SUMMED = frozenset({torch.float32, torch.bfloat16, torch.float16})


def _layers_held(runner: Any, rank: int, size: int) -> list[int]:
    """Return the half-open range of decoder layers that this rank built: as stored on the module
    that holds the layer list, else the split that vLLM would compute.
    """
    for module in runner.get_model().modules():
        start, end = getattr(module, "start_layer", None), getattr(module, "end_layer", None)
        if isinstance(start, int) and isinstance(end, int):
            return [start, end]
    from vllm.distributed.utils import get_pp_indices

    start, end = get_pp_indices(runner.model_config.get_total_num_hidden_layers(), rank, size)
    return [int(start), int(end)]


def pipeline_place() -> tuple[int, int]:
    """Return this process's stage and the number of stages."""
    from vllm.distributed.parallel_state import get_pp_group

    group = get_pp_group()
    return group.rank_in_group, group.world_size


def identity(worker: Any) -> dict[str, Any]:
    """Return facts about the engine as seen from one rank, as plain values."""
    from vllm import envs
    from vllm.distributed.parallel_state import get_tp_group

    runner = worker.model_runner
    config = runner.vllm_config
    (stage, stages), tensor = pipeline_place(), get_tp_group()
    # What carries values between stages: the relay or nnsight itself.
    carriers = {"relay": "relay", "nnsight_pp": "native"} if stages > 1 else {}
    served = (word for name, word in carriers.items() if getattr(runner, name, None) is not None)
    groups = [group for kind in getattr(runner, "attn_groups", ()) for group in kind]
    return {
        "pid": os.getpid(),
        "pipeline_rank": stage,
        "pipeline_size": stages,
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
        "layers": _layers_held(runner, stage, stages),
        "total_layers": int(runner.model_config.get_total_num_hidden_layers()),
        "vocabulary": int(runner.model_config.get_vocab_size()),
        "served": next(served, "none"),
        "model_runner": "V2" if getattr(worker, "use_v2_model_runner", False) else "V1",
        # vLLM's names of the backends of this process's layers.
        "attention": sorted({str(group.backend.get_name()) for group in groups}),
        "products": products() if runner.device.type == "cuda" else "",
        # Only vLLM's kernels for GPUs have this mode.
        "batch_invariant": runner.device.type == "cuda"
        and bool(getattr(envs, "VLLM_BATCH_INVARIANT", False)),
    }


def clear_caches(runner: Any) -> None:
    """Replace nan and inf with zeros in an engine's caches of keys, values and states.

    A request's values stay in its cache blocks. vLLM's attention on a CPU multiplies what lies
    beyond a prompt's end by zero, which stays nan if it is nan: a later request that gets such a
    block would become nan throughout.
    """
    for cache in tensors_in(getattr(runner, "kv_caches", ())):
        # A sum with a non-finite term is not finite; this is fifty times as fast as isfinite.
        if cache.dtype in _SUMMED and not math.isfinite(float(cache.sum())):
            cache.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def packed(streams: Streams) -> bytes:
    """Return streams as bytes, the only form of a tensor that leaves an engine with a separate core
    process unchanged. A bare tensor arrives as a list of dtype, shape and buffer.
    """
    return to_bytes({str(index): stream.contiguous() for index, stream in streams.items()})


def unpacked(data: bytes) -> Streams:
    """Return packed streams in order of layers; safetensors returns them in any order."""
    by_name = from_bytes(data)
    return {index: by_name[str(index)] for index in sorted(map(int, by_name))}


class HarnessRPC:
    """Mixed into a worker: the harness's methods, and protection from blocks that exit."""

    model_runner: Any

    def conformance_identity(self) -> dict[str, Any]:
        """See :func:`identity`."""
        return identity(self)

    def conformance_begin(self) -> None:
        """Begin a case: reset caches and process state, and count steps with a block."""
        runner = self.model_runner
        clear_caches(runner)
        if runner.hooks is None:
            start, end = _layers_held(runner, *pipeline_place())
            total = int(runner.model_config.get_total_num_hidden_layers())
            runner.hooks = Hooks(output_locations(runner.get_model(), start, end, total))
        runner.hooks.taken()
        process_state.restore()

    def conformance_hooks(self) -> dict[str, int]:
        """Return the steps with a block since the cell began, and those without a hook."""
        taken: dict[str, int] = self.model_runner.hooks.taken()
        return taken

    def conformance_watch(self, path: str, layout: str) -> None:
        """Start watching this process's layers. `path` leads to the list of layers."""
        every = follow(self.model_runner.get_model(), path)
        start, end = _layers_held(self.model_runner, *pipeline_place())
        self._watching = watched({index: every[index] for index in range(start, end)}, layout)
        self._streams = self._watching.__enter__()

    def conformance_watched(self) -> bytes:
        """Remove the hooks and return what they recorded, packed."""
        self._watching.__exit__(None, None, None)
        return packed(self._streams)

    # A block that tries to exit its process raises an error instead. Collecting a block's values
    # runs the rest of it.

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        with process_state.raising_instead_of_exiting():
            return super().execute_model(*args, **kwargs)  # type: ignore[misc]

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        with process_state.raising_instead_of_exiting():
            return super().sample_tokens(*args, **kwargs)  # type: ignore[misc]

    def collect_nnsight(self, *args: Any, **kwargs: Any) -> Any:
        with process_state.raising_instead_of_exiting():
            return super().collect_nnsight(*args, **kwargs)  # type: ignore[misc]

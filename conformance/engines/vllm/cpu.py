"""What vLLM and nnsight need on a machine without a GPU.

These functions run in the client process, before ``nnsight.modeling.vllm.VLLM(...)``.
Importing this module imports neither vLLM nor torch, so the environment can be set first.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from typing import Any

from conformance.engines import set_environment

#: The worker class to name as ``VLLM._WORKER_CLS`` when stages need no relay.
WORKER = "conformance.engines.vllm.cpu_worker.CPUTraceWorker"

#: Plenty for tiny models. Without an explicit size vLLM takes 92 % of the memory.
KV_CACHE_BYTES = 64 * 1024 * 1024


def silence_empty_cache() -> None:
    """Make ``torch.accelerator.empty_cache`` a no-op: vLLM's loader calls it in the client,
    and without an accelerator it raises.
    """
    import torch

    if torch.cuda.is_available():
        return

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def nothing_to_empty(*_: Any, **__: Any) -> None:
        pass

    # Two functions, as vLLM itself does it: dynamo tells the two apart by identity.
    torch.accelerator.synchronize = nothing
    torch.accelerator.empty_cache = nothing_to_empty


#: The modules in which one vLLM or another looks up `cpu_prepack_moe_weight`.
_PREPACKING = (
    "vllm.model_executor.layers.fused_moe.experts.cpu_moe",
    "vllm.model_executor.layers.fused_moe.cpu_fused_moe",
)


def skip_meta_prepack() -> None:
    """Leave a MoE layer on the meta device as it is: the client's tree is read for its
    structure only, and ``_C::prepack_moe_weight`` has no meta kernel.
    """
    for place in _PREPACKING:
        try:
            module: Any = importlib.import_module(place)
        except ModuleNotFoundError:
            continue
        original = getattr(module, "cpu_prepack_moe_weight", None)
        if original is None or getattr(original, "skips_meta", False):
            continue
        module.cpu_prepack_moe_weight = _skipping_meta(original)


def _skipping_meta(original: Any) -> Any:
    def prepack(weight: Any, isa: Any) -> Any:
        return weight if weight.is_meta else original(weight, isa)

    prepack.skips_meta = True  # type: ignore[attr-defined]
    return prepack


def fork_workers() -> None:
    """Start the executor's workers by ``fork`` from this process, which has all imports done.

    vLLM's CPU platform forces ``spawn`` for them, so every stage would import torch,
    transformers and vLLM anew: 16 s instead of 2.6 s for two stages. A streaming engine has its
    core in such a process, too.
    """
    from vllm.v1.engine import utils
    from vllm.v1.executor import multiproc_executor

    context = multiprocessing.get_context("fork")
    multiproc_executor.get_mp_context = utils.get_mp_context = lambda: context


def import_everything() -> None:
    """Import what an engine needs, once, in a process that will fork engines or workers."""
    import nnsight.modeling.vllm
    import nnsight.modeling.vllm.model_runners.GPUModelRunner  # noqa: F401
    import transformers  # noqa: F401
    import vllm.v1.executor.multiproc_executor  # noqa: F401

    import conformance.engines.vllm.cpu_worker  # noqa: F401


def prepare(*, fork: bool = False) -> None:
    """Everything the client process needs before it builds an engine.

    With ``fork`` the engine core stays in this process and stages are forked from it, which
    is quick and good for short-lived engines in a child that does nothing else. Without it
    vLLM starts its processes afresh, as a user's script would.
    """
    set_environment()
    if fork:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    silence_empty_cache()
    skip_meta_prepack()
    if fork:
        fork_workers()


def worker_class(pipeline: int, *, relay: bool = True) -> str:
    """The worker's qualified name for an engine of ``pipeline`` stages."""
    if pipeline > 1 and relay:
        return "conformance.engines.vllm.relay.cpu.RelayCPUWorker"
    return WORKER


def close(model: Any) -> None:
    """Shut the engine of an ``nnsight`` VLLM model down and wait for its processes."""
    entry = model.vllm_entrypoint
    if entry is None:
        return
    model.vllm_entrypoint = None
    core = getattr(entry, "llm_engine", entry).engine_core
    core.shutdown()

"""Preparation of vLLM and nnsight on a machine without a GPU.

These functions run in the client process, before ``nnsight.modeling.vllm.VLLM(...)``. Importing
this module imports neither vLLM nor torch, so the environment can be set first.
"""

from __future__ import annotations

from typing import Any

from conformance.engines import set_environment
from conformance.engines.vllm import core_process, patches
from conformance.engines.vllm.patches import PatchPlace

#: The worker class to name as ``VLLM._WORKER_CLS`` if stages need no relay.
WORKER = "conformance.engines.vllm.inside.cpu_worker.CPUTraceWorker"

#: Enough for tiny models. Without an explicit size vLLM takes 92 % of the memory. Before each case
#: the whole cache is searched for numbers that are not finite, so it should be small.
KV_CACHE_BYTES = 16 * 1024 * 1024

#: Modules that vLLM and nnsight import only when an engine is opened, some two hundred with their
#: own imports. They take up to a second in every worker whose zygote has not imported them.
OPENING = (
    "nnsight.intervention.errors",
    "nnsight.modeling.vllm.engines.engine",
    "nnsight.modeling.vllm.envoys",
    "nnsight.modeling.vllm.tracer",
    "vllm.compilation.backends",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.llm",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.coordinator",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.metrics.loggers",
    "vllm.v1.pool.flash_maxsim",
)


def import_everything() -> None:
    """Import what an engine needs, in a process that will fork engines or workers."""
    import nnsight.modeling.vllm
    import nnsight.modeling.vllm.model_runners.GPUModelRunner  # noqa: F401
    import transformers  # noqa: F401
    import vllm.v1.executor.multiproc_executor  # noqa: F401

    import conformance.engines.vllm.inside.cpu_worker  # noqa: F401


def prepare(*, fork: bool = False) -> None:
    """Prepare the client process to build an engine.

    With ``fork`` the engine core stays in this process and stages are forked from it. That is fast,
    and suits short-lived engines in a child process that does nothing else. Without it, vLLM starts
    new processes, as for a user's script.
    """
    set_environment()
    if fork:
        core_process.keep_here()
    patches.apply(PatchPlace.NO_GPU)
    if fork:
        patches.apply(PatchPlace.FORKING)


def worker_class(pipeline: int, *, relay: bool = True) -> str:
    """Return the qualified name of the worker class for an engine of ``pipeline`` stages."""
    if pipeline > 1 and relay:
        return "conformance.engines.vllm.relay.cpu.RelayCPUWorker"
    return WORKER


def close(model: Any) -> None:
    """Shut down the engine of an ``nnsight`` VLLM model and wait for its processes."""
    entry = model.vllm_entrypoint
    if entry is None:
        return
    model.vllm_entrypoint = None
    client = getattr(entry, "llm_engine", entry).engine_core
    core = core_process.core_here(entry)
    if core is None or core.vllm_config.device_config.device_type != "cpu":
        client.shutdown()
    else:
        client._finalizer.detach()
        _end(core.model_executor)


def _end(executor: Any) -> None:
    """End the stages of an engine whose core is in this process, which is about to end as well.

    vLLM's own shutdown is meant for processes that continue: it searches all imported modules for
    objects to release, which takes a second per process.
    """
    stages = [worker.proc for worker in getattr(executor, "workers", ())]
    if stages:
        executor.shutting_down = True  # otherwise its monitor reports their exit as a crash
        for stage in stages:
            stage.kill()
        for stage in stages:
            stage.join()
        executor.shutdown()

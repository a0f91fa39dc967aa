"""Preparation and shutdown of vLLM and nnsight in the client's process.

Importing this module imports neither vLLM nor torch, so the environment can be set first.
"""

from __future__ import annotations

import os
from typing import Any

from conformance.engines import set_environment
from conformance.engines.vllm import patches
from conformance.engines.vllm.patches import PatchPlace

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
    import nnsight.modeling.vllm  # noqa: F401
    import transformers  # noqa: F401
    import vllm.v1.executor.multiproc_executor  # noqa: F401

    import conformance.engines.vllm.inside.cpu_worker  # noqa: F401


def prepare(*, streaming: bool = False) -> None:
    """Prepare this process to build an engine. Without a GPU, the engine's processes are forked
    from it, which is fast and suits short-lived engines in a process that does nothing else.

    Unless the engine is streaming, its core, which schedules the requests of each step, stays in
    this process. Elsewhere it would start with a trace's first request while others are still
    arriving, so the batch size, and on a GPU a row's last bits, would depend on timing. Nor could
    functions be sent to it.
    """
    import torch

    cuda = torch.cuda.is_available()
    if not (cuda and streaming):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if not cuda:
        set_environment()
        patches.apply(PatchPlace.NO_GPU)
        patches.apply(PatchPlace.FORKING)


def worker_class(*, relay: bool) -> str:
    """Return the qualified name of the worker class that vLLM builds in each of its processes."""
    import torch

    device = "GPU" if torch.cuda.is_available() else "CPU"
    name = f"Relay{device}Worker" if relay else f"{device}TraceWorker"
    return f"conformance.engines.vllm.inside.{device.lower()}_worker.{name}"


def core_here(entry: Any) -> Any:
    """Return the core behind an `LLM`, or None if it is in another process or behind a server, for
    which nnsight's model has no entry point.
    """
    client = getattr(getattr(entry, "llm_engine", entry), "engine_core", None)
    return getattr(client, "engine_core", None)


def close(model: Any) -> None:
    """Shut down the engine of an ``nnsight`` VLLM model and wait for its processes.

    vLLM's own shutdown is meant for processes that continue: it searches all imported modules for
    objects to release, which takes a second per process. On a CPU the stages are killed instead,
    since this process is about to end as well.
    """
    entry, model.vllm_entrypoint = model.vllm_entrypoint, None
    if entry is None:
        return
    client = getattr(entry, "llm_engine", entry).engine_core
    core = core_here(entry)
    if core is None or core.vllm_config.device_config.device_type != "cpu":
        client.shutdown()
        return
    client._finalizer.detach()
    executor = core.model_executor
    stages = [worker.proc for worker in getattr(executor, "workers", ())]
    if stages:
        executor.shutting_down = True  # otherwise its monitor reports their exit as a crash
        for stage in stages:
            stage.kill()
        for stage in stages:
            stage.join()
        executor.shutdown()

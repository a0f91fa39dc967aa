"""The engines: the only package that imports transformers, nnsight or vLLM.

`ENGINES` lists them. A worker imports the one it opens, so the parent process needs none of them
installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import psutil

from conformance.spec.records import Case, Group, Job
from conformance.spec.scenario import Scenario

#: Engines that run programs written for another library → the adapter module of each.
LIBRARIES: Mapping[str, str] = {
    "transformer-lens": "conformance.engines.libraries.transformer_lens",
    "nnterp": "conformance.engines.libraries.nnterp",
    "pyvene": "conformance.engines.libraries.pyvene",
    "interp-engine": "conformance.engines.libraries.interp_engine",
    "interp-engine-vllm": "conformance.engines.libraries.interp_engine_vllm",
    "vllm-lens": "conformance.engines.libraries.vllm_lens",
}

#: Engine name in models.yaml → `module:function` that opens it from a Job.
ENGINES: Mapping[str, str] = {
    "hf": "conformance.engines.hf:open_engine",
    "vllm": "conformance.engines.vllm.engine:open_engine",
    "vllm-async": "conformance.engines.vllm.async_engine:open_engine",
    "vllm-serve": "conformance.engines.vllm.serve_engine:open_engine",
    "reference": "conformance.engines.reference.engine:open_engine",
    "build": "conformance.engines.building.checkpoint_builder:open_engine",
    **{name: f"{module}:open_engine" for name, module in LIBRARIES.items()},
}

#: The vLLM front end that takes the requests of each engine that runs on vLLM.
FRONTS: Mapping[str, str] = {
    "vllm": "LLM",
    "vllm-async": "AsyncLLM",
    "vllm-serve": "nnsight-vllm-serve",
}

#: Environment variables of every worker, read when libraries are imported or start processes.
ENVIRONMENT = {
    # The default binding refuses two pipeline stages on one memory node with two cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # One thread per worker, and no thread pool, which a fork would lose.
    "OMP_NUM_THREADS": "1",
    # The client and the worker must build the same model, and only the V1 runner is instrumented.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # All processes of an engine are on one machine and talk to no other. Without these, vLLM uses
    # the outward-facing address, and gloo and NCCL choose any interface.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # Count GPUs without initializing CUDA, which a forked process could not use: engines count them
    # before they load vLLM (which sets this too), and vLLM forks its own processes.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

#: Variables that a backend option needs set before vLLM is imported: only then does vLLM create the
#: places where a CUDA graph can be broken. nnsight sets this one later, for engine cores in
#: separate processes; here the core runs in the client (`docs/gaps/taps_cuda_graphs.py`).
OF_OPTIONS: Mapping[str, Mapping[str, str]] = {"taps": {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}}


def environment_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables for the workers of a backend with these options."""
    found = dict(ENVIRONMENT)
    for name in options:
        found |= OF_OPTIONS.get(name, {})
    return found


def set_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that are not set yet; keep the caller's values."""
    for name, value in ENVIRONMENT.items():
        environment.setdefault(name, value)
    with suppress(metadata.PackageNotFoundError):
        metadata.distribution("vllm-cpu")
        # Without this, vLLM's CPU build queries the GPU driver and leaves a thread running.
        environment.setdefault("VLLM_TARGET_DEVICE", "cpu")


#: Engine → the module that its zygote imports.
PRELOAD: Mapping[str, str] = {
    **dict.fromkeys(("hf", "reference", "build"), "conformance.engines.preload_hf"),
    **dict.fromkeys(FRONTS, "conformance.engines.vllm.preload"),
    **LIBRARIES,
}


#: Exists on machines with an NVIDIA driver.
DRIVER = Path("/dev/nvidiactl")


def preload(engine: str) -> str:
    """Return the module that a zygote imports before it forks workers, or "" for none.

    HF and vLLM never share a process: vLLM's Transformers backend patches transformers' classes. On
    a machine with a GPU, even a hidden one, each worker does its own imports. Counting devices
    makes the CUDA driver start a thread, and a forked process cannot use an opened CUDA context.
    """
    import torch

    driver = torch.cuda.is_available() or (torch.version.cuda and DRIVER.exists())
    return "" if driver else PRELOAD.get(engine, "")


def import_present(names: Iterable[str]) -> None:
    """Import those of these modules that are installed, so that forked workers need not."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def require_forkable(package: str) -> None:
    """Raise RuntimeError if the imports started threads or opened a CUDA context.

    A forked child has only the forking thread: a lock held by another thread stays locked for ever.
    A CUDA context cannot be used in a forked child at all.
    """
    import torch

    threads = psutil.Process(os.getpid()).num_threads()
    if threads > 1:
        raise RuntimeError(f"importing {package} left {threads} threads: a fork could hang")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(f"importing {package} opened a CUDA context: a fork could not use it")


class Refused(Exception):
    """The engine or nnsight does not support this; holds their message verbatim."""


class Unreadable(Exception):
    """The residual stream's layout could not be determined: what was tried, and how far off."""


class Engine(Protocol):
    """What a worker needs of an engine. Opening the engine loads the model.

    If a case raises, the worker keeps the engine only if it has `still_well()` and that returns
    true. If the engine has `unchanged()`, the worker calls it after each case of a user's scenario:
    it returns whether the engine still computes what it computed when it was loaded.
    """

    def group(self) -> Group:
        """Return what was loaded: identity, versions, layout and how it was determined."""
        ...

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        """Return the scenario's observations by `str(Site)`, as torch tensors on the CPU.

        Raises `Refused` if the engine does not support the case and `Unreadable` if the stream's
        layout is unknown. Any other exception is an error of the trace.
        """
        ...

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of the case's prompts by the engine's own tokenizer."""
        ...

    def close(self) -> None: ...


def load_engine(name: str, job: Job) -> Engine:
    """Open an engine, given as `module:function`, for a job; this loads the model."""
    from conformance.engines.float32_products import whole_products

    # Must come before the engine imports or starts anything: its processes inherit these settings.
    whole_products(job.precision)
    module, _, function = name.partition(":")
    engine: Engine = getattr(importlib.import_module(module), function)(job)
    return engine

"""The engines: the only place that imports transformers, nnsight or vLLM.

`ENGINES` names them; nothing here is imported until a worker opens one, so the
parent needs none of them installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, MutableMapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from conformance.records import Case, Group, Job
from conformance.scenario import Scenario

#: Engines that run programs in the words of another library → the module of each one's adapter.
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

#: What takes the requests of those that run on vLLM, in its own words.
FRONTS: Mapping[str, str] = {
    "vllm": "LLM",
    "vllm-async": "AsyncLLM",
    "vllm-serve": "nnsight-vllm-serve",
}

#: Environment variables of every worker: read when libraries are imported or start processes.
ENVIRONMENT = {
    # The default binding refuses two stages on one memory node of two cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # One thread a worker, and no pool that a fork would lose.
    "OMP_NUM_THREADS": "1",
    # The client and the worker build the same model; only the V1 runner is instrumented.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # All processes of an engine are on one machine, and nobody on another has any business with
    # them. Else vLLM takes the address that leads out, gloo and NCCL an interface of their choice.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # Ask for GPUs without opening CUDA's driver, which a forked process could not use: engines
    # ask before they load vLLM (which sets this, too), and vLLM forks its own processes.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

#: Variables besides, by the option of a backend that wants them set before vLLM is imported: only
#: then are the places made at which a CUDA graph can be broken. nnsight sets it later, for cores in
#: a process of their own; ours stays with the client (`docs/gaps/taps_cuda_graphs.py`).
OF_OPTIONS: Mapping[str, Mapping[str, str]] = {"taps": {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}}


def environment_of(options: Mapping[str, Any]) -> dict[str, str]:
    """What the workers of a backend with these options find in their environment."""
    found = dict(ENVIRONMENT)
    for name in options:
        found |= OF_OPTIONS.get(name, {})
    return found


def set_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what is not set yet; a value chosen by the caller stays."""
    for name, value in ENVIRONMENT.items():
        environment.setdefault(name, value)
    if _has_cpu_build():
        # Else vLLM's build for CPUs asks the driver of a GPU what is there, whose thread stays.
        environment.setdefault("VLLM_TARGET_DEVICE", "cpu")


def _has_cpu_build() -> bool:
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


#: Engine → the module that its zygote imports.
PRELOAD: Mapping[str, str] = {
    "hf": "conformance.engines.preload_hf",
    "vllm": "conformance.engines.vllm.preload",
    "vllm-async": "conformance.engines.vllm.preload",
    "vllm-serve": "conformance.engines.vllm.preload",
    "reference": "conformance.engines.preload_hf",
    "build": "conformance.engines.preload_hf",
    **LIBRARIES,
}


#: There where a machine has an NVIDIA driver.
DRIVER = Path("/dev/nvidiactl")


def preload(engine: str) -> str:
    """The module a zygote imports once, so that its forked workers need not; "" for none.

    HF and vLLM never share a process: vLLM's Transformers backend patches transformers'
    classes. With a GPU, be it hidden, each worker imports for itself: CUDA's driver starts a
    thread when it is asked for devices, and what it opened cannot be used in a forked process.
    """
    import torch

    driver = torch.cuda.is_available() or (torch.version.cuda and DRIVER.exists())
    return "" if driver else PRELOAD.get(engine, "")


class Refused(Exception):
    """The engine, or nnsight, says that it cannot do this: its own words, kept verbatim."""


class Unreadable(Exception):
    """The residual stream's layout could not be settled: what was tried, and how far off."""


class Engine(Protocol):
    """What a worker needs of an engine. Opening it is the load.

    One that has `still_well()` says with it, after a case that raised, whether it is what it was
    and may run the next one; any other is closed then. One that has `unchanged()` says with it,
    after each case of a user's scenario, whether it computes what it did when it was loaded.
    """

    def group(self) -> Group:
        """What was really loaded: identity, versions, layout and how it was found."""
        ...

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        """The scenario's observations by `str(Site)`, as torch tensors on the CPU.

        Raises `Refused` for what cannot be done, `Unreadable` when the stream's
        layout is not settled; anything else is an error of the trace.
        """
        ...

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        """The token ids the engine's own tokenizer makes of the case's prompts."""
        ...

    def close(self) -> None: ...


def load_engine(name: str, job: Job) -> Engine:
    """The engine of this name, `module:function`, over a job: this is its load."""
    from conformance.engines.float32_products import whole_products

    # Before anything of the engine's is imported or started: its processes inherit it.
    whole_products(job.precision)
    module, _, function = name.partition(":")
    engine: Engine = getattr(importlib.import_module(module), function)(job)
    return engine

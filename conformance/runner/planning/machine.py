"""Properties of a machine that affect numbers: its hardware, and the selected kernels."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, MutableMapping
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.engines import ENVIRONMENT

#: Environment variables that select threads, instruction sets and kernels.
_CHOOSING = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "ATEN_*", "ONEDNN_*", "DNNL_*"),
    *("CUBLAS*", "CUDNN*", "NVIDIA_*TF32*", "TORCH_ALLOW_*", "TORCHDYNAMO_*", "VLLM_*"),
)
#: A worker's defaults.
_USUAL = {**ENVIRONMENT, "MKL_NUM_THREADS": "1"}

#: Prefixes of the names of SIMD instruction sets.
_INSTRUCTIONS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "fphp", "i8mm", "sse4", "sve")


def device() -> str:
    """Return the hardware that observations depend on: the first GPU, else the processor's model.

    Processors with other instruction sets use other kernels, and round differently.
    """
    import torch  # not at the top: who joins a cluster computes nothing itself

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return f"cpu: {_cpuinfo('model name') or platform.processor() or platform.machine()}"


def features() -> str:
    """Return the instruction sets that select kernels: `avx2 avx512f fma`; "" if unknown.

    A hypervisor may hide some of them.
    """
    flags = set(_cpuinfo("flags", "feat").split())
    return " ".join(sorted(flag for flag in flags if flag.startswith(_INSTRUCTIONS)))


def _cpuinfo(*names: str) -> str:
    """Return the first value in /proc/cpuinfo whose name begins so."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((x.partition(":")[2].strip() for x in lines if x.lower().startswith(names)), "")


def read_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that affect numerical results."""
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in _CHOOSING)
    }


def arithmetic(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the caller's settings that differ from a worker's defaults: `OMP_NUM_THREADS=4`."""
    found = sorted(read_variables(environment).items())
    return tuple(f"{name}={value}" for name, value in found if value != _USUAL.get(name))


def set_arithmetic(
    wanted: Mapping[str, str], environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set exactly these variables; others, such as those that Ray sets, are removed."""
    for name in read_variables(environment):
        del environment[name]
    environment.update(wanted)


def conditions() -> str:
    """Return hardware and settings as text: observations under other conditions differ."""
    return "; ".join(filter(None, (device(), features(), *arithmetic())))

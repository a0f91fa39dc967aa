"""What of a machine decides how numbers come out: its hardware, and the kernels it is told."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, MutableMapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from conformance.engines import ENVIRONMENT

#: Environment variables by which threads, instruction sets and kernels are chosen.
_CHOOSING = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "ATEN_*", "ONEDNN_*", "DNNL_*"),
    *("CUBLAS*", "CUDNN*", "NVIDIA_*TF32*", "TORCH_ALLOW_*", "TORCHDYNAMO_*", "VLLM_*"),
)
#: What a worker has where nothing is chosen.
_USUAL = {**ENVIRONMENT, "MKL_NUM_THREADS": "1"}


#: How the names of instruction sets begin that compute with several numbers at once.
_INSTRUCTIONS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "fphp", "i8mm", "sse4", "sve")


def device() -> str:
    """The hardware observations depend on: the first GPU, or else the processor's model.

    Processors with other instruction sets take other kernels, and round differently.
    """
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"cpu: {next(models, platform.processor() or platform.machine())}"


def features() -> str:
    """The instruction sets by which kernels are chosen: `avx2 avx512f fma`; "" where unknown.

    A hypervisor may hide some of a processor's.
    """
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    named = (line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "feat")))
    flags = next(named, "").split()
    return " ".join(sorted(flag for flag in set(flags) if flag.startswith(_INSTRUCTIONS)))


def arithmetic(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """`OMP_NUM_THREADS=4`: what the caller chooses, where a worker's default is another."""
    return tuple(
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if any(fnmatchcase(name, pattern) for pattern in _CHOOSING) and value != _USUAL.get(name)
    )


def chosen(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All of these variables that are set."""
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in _CHOOSING)
    }


def set_arithmetic(
    wanted: Mapping[str, str], environment: MutableMapping[str, str] = os.environ
) -> None:
    """Have exactly these: whoever starts processes elsewhere, as Ray does, sets some of its own."""
    for name in chosen(environment):
        del environment[name]
    environment.update(wanted)


def conditions() -> str:
    """Both in one text: observations made under other conditions are not the same."""
    return "; ".join(filter(None, (device(), features(), *arithmetic())))

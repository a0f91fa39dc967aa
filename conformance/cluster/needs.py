"""A group's resource needs (pure functions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.engines import FRONTS
from conformance.records import Backend

MIB = 1 << 20

#: A worker's memory per rank without weights: libraries, a trace, observations. At least one and a
#: half times what tiny models use (docs/scale.md), which have nothing else.
_BESIDES = {"vllm": 2048 * MIB, "": 1536 * MIB}

#: The most copies of the checkpoint, in bf16 sizes, that an engine holds: the reference holds
#: float32, bf16 and a copy with other roundings; others hold copies while loading.
_COPIES = {"reference": 5, "": 3}


@dataclass(frozen=True)
class Needs:
    """Ray's resources. Memory is in bytes."""

    cpus: int
    gpus: int
    memory: int

    def lacking(self, resources: Mapping[str, float]) -> str:
        """Return what a machine with these total resources has too little of, or ""."""
        short = [
            f"{_amount(resources.get(name, 0), unit)} of {_amount(wanted, unit)} {words}"
            for name, words, unit, wanted in (
                ("CPU", "CPUs", 1, self.cpus),
                ("GPU", "GPUs", 1, self.gpus),
                ("memory", "GiB of memory", 1 << 30, self.memory),
            )
            if wanted > resources.get(name, 0)
        ]
        return f"has {', '.join(short)}" if short else ""


def _amount(value: float, unit: int) -> str:
    return f"{value / unit:.1f}".removesuffix(".0")


def of(backend: Backend, weights: int, *, gpus: bool) -> Needs:
    """Return a backend's needs. `weights` is the checkpoint's size; `gpus` gives each rank one."""
    ranks = backend.pipeline * backend.tensor
    besides = _BESIDES["vllm" if backend.engine in FRONTS else ""]
    copies = _COPIES.get(backend.engine, _COPIES[""])
    memory = ranks * besides + copies * weights
    return Needs(cpus=ranks, gpus=ranks if gpus else 0, memory=memory)

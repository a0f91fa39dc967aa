"""What a group needs of a machine (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.engines import FRONTS
from conformance.records import Backend

MIB = 1 << 20

#: Memory of a worker besides weights, for each rank: libraries, a trace, what is observed. Half as
#: much again as was seen of tiny models, where there is nothing else (docs/scale.md), and more.
_BESIDES = {"vllm": 2048 * MIB, "": 1536 * MIB}

#: How many times the checkpoint's size, in bf16, an engine holds at most: the reference in float32
#: and bf16 with a copy that is rounded otherwise, others while they load.
_COPIES = {"reference": 5, "": 3}


@dataclass(frozen=True)
class Needs:
    """Ray's own resources. Memory in bytes."""

    cpus: int
    gpus: int
    memory: int

    def lacking(self, resources: Mapping[str, float]) -> str:
        """What a machine with these in all has too little of, in words; "" when it could do."""
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
    """What its groups need. `weights` is the checkpoint's size; with `gpus` every rank has one."""
    ranks = backend.pipeline * backend.tensor
    besides = _BESIDES["vllm" if backend.engine in FRONTS else ""]
    copies = _COPIES.get(backend.engine, _COPIES[""])
    memory = ranks * besides + copies * weights
    return Needs(cpus=ranks, gpus=ranks if gpus else 0, memory=memory)

"""The machines of a cluster: their resources, what groups need, and why one cannot take part."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.engines import FRONTS
from conformance.runner.cluster import shim
from conformance.runner.cluster.messages import Expected
from conformance.spec.records import Backend

#: Seconds that a machine has to answer; it imports torch for that.
_ANSWERS_WITHIN = 120.0


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


def needs_of(backend: Backend, weights: int, *, gpus: bool) -> Needs:
    """Return a backend's needs. `weights` is the checkpoint's size; `gpus` gives each rank one."""
    ranks = backend.pipeline * backend.tensor
    besides = _BESIDES["vllm" if backend.engine in FRONTS else ""]
    copies = _COPIES.get(backend.engine, _COPIES[""])
    memory = ranks * besides + copies * weights
    return Needs(cpus=ranks, gpus=ranks if gpus else 0, memory=memory)


@dataclass(frozen=True)
class Machine:
    """A node of the cluster. `cannot` is why no group can run on it, "" if no reason is known.
    `device` is its kind of machine, "" if it did not say.
    """

    node: str
    name: str
    resources: Mapping[str, float]
    device: str = ""
    cannot: str = ""


def list_nodes(ray: Any) -> dict[str, Mapping[str, Any]]:
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def query(ray: Any, expected: Expected) -> tuple[Machine, ...]:
    """Ask each node for its device and whether groups can run on it; `cannot` says why not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(shim)
    ask = ray.remote(num_cpus=0, max_retries=0)(shim.look)
    nodes = list_nodes(ray)
    asked = {
        node: ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(pickle.dumps(expected))
        for node in nodes
    }
    answers = list(asked.values())
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=_ANSWERS_WITHIN)
    return tuple(
        _machine(ray, nodes[node], answer, answered=answer in ready)
        for node, answer in asked.items()
    )


def _machine(ray: Any, node: Mapping[str, Any], answer: Any, *, answered: bool) -> Machine:
    name, resources = f"{node['NodeManagerHostname']}", node["Resources"]
    if not answered:
        return Machine(node["NodeID"], name, resources, cannot="does not answer")
    try:
        said = ray.get(answer)
    except ray.exceptions.RayError as error:
        words = f"cannot be asked: {error}".splitlines()[0]
        return Machine(node["NodeID"], name, resources, cannot=words)
    return Machine(node["NodeID"], name, resources, said["device"], said["cannot"])


def distinguish(machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """Return the machines with distinct names, also if several are on one host."""
    hosts = [machine.name for machine in machines]
    return tuple(
        replace(machine, name=f"{machine.name}#{machine.node[:6]}")
        if hosts.count(machine.name) > 1
        else machine
        for machine in machines
    )


def have_gpus(machines: Sequence[Machine]) -> bool:
    """Return whether groups run on GPUs: if any machine has some."""
    return any(machine.resources.get("GPU", 0) for machine in machines)


def describe_resources(resources: Mapping[str, float]) -> str:
    memory = resources.get("memory", 0) / (1 << 30)
    return f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs, {memory:.1f} GiB"


def explain(needs: Needs, machines: Sequence[Machine], excluded: Mapping[str, str]) -> str:
    """Return why none of these machines can run something with these needs, or "" (pure)."""
    reasons = []
    for machine in machines:
        why = machine.cannot or excluded.get(machine.node) or needs.lacking(machine.resources)
        if not why:
            return ""
        reasons.append(f"{machine.name} {why}")
    return "no machine of the cluster can run it: " + ("; ".join(reasons) or "there is none")

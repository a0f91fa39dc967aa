"""How an engine with a loaded model runs a scenario: shared by HF and vLLM."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.engines.model_parts import Parts, TracedLayer, require_layers
from conformance.engines.structure import dense_copy
from conformance.engines.tree import follow
from conformance.errors import ConformanceError
from conformance.spec.builtin.probe import ARRANGED
from conformance.spec.direction import direction
from conformance.spec.records import Case, Site
from conformance.spec.residual_stream import distance
from conformance.spec.scenario import Scenario


class TracedLayers(Sequence[TracedLayer]):
    """`lm.layers`. Holds only the model and a path: it is sent to other processes with a block."""

    def __init__(
        self,
        model: Any,
        path: str,
        count: int,
        layout: str,
        kind: type[TracedLayer],
        parts: Parts | None = None,
    ) -> None:
        self.model = model
        self.path = path
        self.size = count
        self.layout = layout
        self.kind = kind
        self.parts = parts or Parts()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(self.size)[index]]
        envoy = follow(self.model, self.path)[range(self.size)[index]]
        return self.kind(envoy, self.layout, self.parts)


@dataclasses.dataclass(frozen=True)
class Probe:
    """The float32 reference on the probe prompt, used to determine the layout and scale directions.

    `streams` and `noise` have one entry per layer: [tokens, width], and the largest relative
    distance of a bf16 baseline run from it. `arranged` is how transformers' attention holds query,
    key and value (`conformance.engines.inside_attention.measure`). `observations` is the
    file, which also holds the rules of attention (`conformance.engines.score_rule`).
    """

    streams: tuple[Tensor, ...]
    noise: tuple[float, ...]
    arranged: str = ""
    observations: Path = Path()

    def norm(self, layer: int) -> float:
        """Return the median norm of the stream's rows after a layer."""
        return float(self.streams[layer].norm(dim=-1).median())


def read_probe(folder: Path) -> Probe:
    """Load the reference's observations of the probe prompt. Raises ConformanceError if they are
    missing, which is not the engine's error.
    """
    path = folder / "observations.safetensors"
    if not path.is_file():
        raise ConformanceError(
            "the reference did not measure the probe prompt", path=path, remedy="see its log.txt"
        )
    values = load_file(path)
    layers = sum(key.startswith("truth|p0/s0/stream.") for key in values)

    def rows(member: str, layer: int) -> Tensor:
        return values[f"{member}|{Site('stream', layer=layer)}"]

    reference = tuple(rows("truth", layer).float() for layer in range(layers))
    members = sorted({key.split("|")[0] for key in values} - {"truth", "aux"})
    noise = tuple(
        max(distance(rows(member, layer), reference[layer]) for member in members)
        for layer in range(layers)
    )
    arranged = values.get(f"truth|{Site(ARRANGED)}", torch.empty(0, dtype=torch.uint8))
    return Probe(reference, noise, bytes(arranged.tolist()).decode(), path)


def vector(probe: Probe, layer: int, seed: int) -> Tensor:
    """Return the vector of `lm.direction`, with the typical norm of the stream after that layer."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return direction(probe.streams[layer].shape[-1], probe.norm(layer), seed).to(device)


def observe(lm: Any, scenario: Scenario, case: Case) -> dict[str, Tensor]:
    """Run a scenario, the clean run first if it is an intervention; return observations by site.

    Raises Refused if the model lacks a layer or part that the case needs.
    """
    require_layers(case, len(lm.layers))
    lm.layers.parts.require(scenario.needs(case))
    return flatten_runs(scenario, case, lambda run_case: scenario.run(lm, run_case))


def flatten_runs(
    scenario: Scenario, case: Case, run: Callable[[Case], Any], only: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return an intervention's clean and edited run, or another scenario's one run, by site.

    `only` limits the runs to the named ones.
    """
    cases = {"": case}
    if scenario.twin(case):
        cases = {
            "clean": dataclasses.replace(case, active=False),
            "edited": dataclasses.replace(case, active=True),
        }
    values: dict[str, Tensor] = {}
    for name, run_case in cases.items():
        if not only or name in only:
            values |= flatten(run(run_case), name)
    return values


def flatten(prompts: Sequence[Mapping[str, Any]], run: str) -> dict[str, Tensor]:
    """Return tensors by site, on the CPU, from one mapping of observations per prompt.

    A list has one entry per step and a dict one per layer, nested in either order. A string becomes
    its bytes.
    """
    values: dict[str, Tensor] = {}

    def walk(value: Any, site: Site) -> None:
        if isinstance(value, Mapping):
            for layer, part in value.items():
                walk(part, dataclasses.replace(site, layer=int(layer)))
        elif isinstance(value, (list, tuple)):
            for step, part in enumerate(value):
                walk(part, dataclasses.replace(site, step=step))
        elif isinstance(value, Tensor):
            values[str(site)] = dense_copy(value)
        elif isinstance(value, str):
            values[str(site)] = torch.tensor(list(value.encode()), dtype=torch.uint8)
        else:
            values[str(site)] = torch.as_tensor(value)

    for index, observations in enumerate(prompts):
        for name, value in observations.items():
            walk(value, Site(name, prompt=index, run=run))
    return values

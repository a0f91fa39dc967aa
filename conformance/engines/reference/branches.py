"""What a layer of the reference adds to the stream, by branch; used for the diagnosis.

The branches are found by value, not by name: the two modules inside a layer whose outputs, added to
the layer's input, give its output. This covers Gemma's norms after each branch, parallel residuals
and Bloom's residual inside a branch. A layer without two such modules (Mamba has one branch) has
none recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.records import Site

#: The relative float32 tolerance to which a layer's branches must add up to its update.
_ADDS_UP = 1e-5

#: The values of one forward, named as in `judge.diagnosis.transformations`.
Step = dict[str, Tensor]


@dataclass(frozen=True)
class Branches:
    """Modules by the name of their value: "mlp.3", "attention.3", "normed.3"."""

    modules: Mapping[str, Module] = field(default_factory=dict)

    @contextmanager
    def recorded(self, model: Any, layers: Sequence[Module], steps: list[Step]) -> Iterator[None]:
        """Append each forward's values to `steps`: rows [tokens, width] of the only prompt."""
        with _watched(model, layers) as watched, _hooks() as hook:

            def begin(module: Any, args: Any, kwargs: Any) -> None:
                steps.append({})

            def keep(name: str) -> Callable[..., None]:
                def after(module: Any, args: Any, output: Any) -> None:
                    value = _tensor(output)
                    if value is not None:
                        steps[-1][name] = value.reshape(-1, watched.width).clone()

                return after

            def end(module: Any, args: Any, output: Any) -> None:
                steps[-1]["embedding"] = watched.inputs[0].clone()
                if watched.head is not None and not torch.equal(watched.head, output.logits[0, -1]):
                    steps[-1]["uncapped"] = watched.head

            hook(model.register_forward_pre_hook(begin, with_kwargs=True))
            hook(model.register_forward_hook(end))
            for name, module in self.modules.items():
                hook(module.register_forward_hook(keep(name)))
            yield


@dataclass
class _Watched:
    """The inputs and outputs of every layer in one forward, and the outputs of its modules."""

    width: int
    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    inner: dict[int, list[tuple[Module, Tensor]]] = field(default_factory=dict)
    norms: list[tuple[Module, Tensor]] = field(default_factory=list)
    head: Tensor | None = None

    def enter(self, index: int, module: Any, args: Any, kwargs: Any) -> None:
        value = self._rows(args or kwargs.get("hidden_states"))
        if value is not None:
            self.inputs[index] = value

    def inside(self, index: int, module: Module, args: Any, output: Any) -> None:
        value = self._rows(output)
        if value is not None and value.shape == self.inputs[index].shape:
            self.inner[index].append((module, value))

    def leave(self, index: int, module: Any, args: Any, output: Any) -> None:
        value = self._rows(output)
        if value is not None:
            self.outputs[index] = value

    def norm(self, module: Module, args: Any, output: Any) -> None:
        value = self._rows(args)
        if value is not None:
            self.norms.append((module, value))

    def last(self, module: Any, args: Any, output: Tensor) -> None:
        self.head = output.detach()[0, -1].clone()

    def _rows(self, value: Any) -> Tensor | None:
        tensor = _tensor(value)
        if tensor is None or not tensor.is_floating_point() or tensor.numel() % self.width:
            return None
        return tensor.detach().reshape(-1, self.width).clone()


def find(model: Any, layers: Sequence[Module], run: Callable[[], Any]) -> Branches:
    """Find the branches of every layer in one forward of a prompt, which `run` runs."""
    with _watched(model, layers, thorough=True) as watched:
        run()
    modules: dict[str, Module] = {}
    for layer, output in watched.outputs.items():
        pair = _adding_up(watched.inner[layer], output - watched.inputs[layer], output)
        if pair is not None:
            modules[f"attention.{layer}"], modules[f"mlp.{layer}"] = pair
        following = (module for module, value in watched.norms if _same(value, output))
        if (norm := next(following, None)) is not None:
            modules[f"normed.{layer}"] = norm
    return Branches(modules)


def observed(reference: Mapping[str, Tensor], runs: Sequence[Any]) -> dict[str, Tensor]:
    """Return the branches that belong to the reference's observations, by `str(Site)`.

    Only for runs without edits, which are identified by the exact bits of their streams. Values
    that follow from the observations are left out: attention, if the layer's input is observed.
    """
    sites = {Site.parse(name): value for name, value in reference.items()}
    observed: dict[Site, Tensor] = {}
    for site, value in sites.items():
        step = None if site.run == "edited" else _of_run(site, value, runs)
        for name, recorded in (step or {}).items():
            kind, _, layer = name.partition(".")
            where = replace(site, name=kind, layer=int(layer) if layer else None)
            of_this_site = (
                where.layer in {None, site.layer} if kind != "uncapped" else site.layer is None
            )
            before = None if site.layer is None else replace(site, layer=site.layer - 1)
            derived = kind == "attention" and (site.layer == 0 or before in sites)
            if of_this_site and not derived and where not in sites:
                observed[where] = recorded.detach().cpu().clone()
    return {str(site): value for site, value in observed.items()}


def _of_run(site: Site, value: Tensor, runs: Sequence[Any]) -> Step | None:
    """Return what was recorded in the forward that produced this value."""
    for run in runs:
        if site.step >= len(run.branches):
            continue
        expected = run.logits[site.step] if site.name == "logits" else None
        if site.layer is not None:
            expected = run.stream[site.step].get(site.layer)
        if expected is not None and torch.equal(expected.cpu(), value):
            step: Step = run.branches[site.step]
            return step
    return None


def _adding_up(
    inner: Sequence[tuple[Module, Tensor]], added: Tensor, output: Tensor
) -> tuple[Module, Module] | None:
    """Return the layer's two modules whose outputs add up to its update of the stream."""
    room = _ADDS_UP * float(output.norm())
    for (first, former), (second, two) in combinations(inner, 2):
        if float((former + two - added).norm()) <= room:
            return first, second
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


@contextmanager
def _watched(model: Any, layers: Sequence[Module], *, thorough: bool = False) -> Iterator[_Watched]:
    """Watch the layers' inputs and the head's output; with `thorough`, also everything inside."""
    watched = _Watched(model.config.get_text_config().hidden_size)
    with _hooks() as hook:
        for index, layer in enumerate(layers):
            hook(layer.register_forward_pre_hook(partial(watched.enter, index), with_kwargs=True))
        if (head := model.get_output_embeddings()) is not None:
            hook(head.register_forward_hook(watched.last))
        for index, layer in enumerate(layers if thorough else ()):
            watched.inner[index] = []
            hook(layer.register_forward_hook(partial(watched.leave, index)))
            for module in layer.modules():
                if module is not layer:
                    hook(module.register_forward_hook(partial(watched.inside, index)))
        for module in model.modules() if thorough else ():
            if "norm" in type(module).__name__.lower():
                hook(module.register_forward_hook(watched.norm))
        yield watched


@contextmanager
def _hooks() -> Iterator[Callable[[Any], None]]:
    """Collect hook handles and remove the hooks on exit."""
    handles: list[Any] = []
    try:
        yield handles.append
    finally:
        for handle in handles:
            handle.remove()


def _tensor(value: Any) -> Tensor | None:
    """Return the tensor itself, or the first of a tuple."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None

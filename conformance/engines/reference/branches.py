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

from conformance.engines.tree import hooked
from conformance.spec.records import Site

#: The relative float32 tolerance to which a layer's branches must add up to its update.
_ADDS_UP = 1e-5

#: The values of one forward, named as in `judge.cell.diagnosis.hypotheses`.
Step = dict[str, Tensor]


@dataclass(frozen=True)
class Branches:
    """Modules by the name of their value: "mlp.3", "attention.3", "normed.3"."""

    modules: Mapping[str, Module] = field(default_factory=dict)

    @contextmanager
    def recorded(self, model: Any, layers: Sequence[Module], steps: list[Step]) -> Iterator[None]:
        """Append each forward's values to `steps`: rows [tokens, width] of the only prompt."""
        rows = partial(_rows, _width(model))

        def begin(module: Any, args: Any, kwargs: Any) -> None:
            steps.append({})

        def keep(name: str, value: Any) -> None:
            if (tensor := rows(value)) is not None:
                steps[-1][name] = tensor

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            keep("embedding", args or kwargs.get("hidden_states"))

        def after(name: str, module: Any, args: Any, output: Any) -> None:
            keep(name, output)

        def head(module: Any, args: Any, output: Tensor) -> None:
            steps[-1]["uncapped"] = output[0, -1].clone()

        def end(module: Any, args: Any, output: Any) -> None:
            last = output.logits[0, -1]
            if torch.equal(steps[-1].get("uncapped", last), last):
                steps[-1].pop("uncapped", None)

        handles = [
            model.register_forward_pre_hook(begin, with_kwargs=True),
            layers[0].register_forward_pre_hook(enter, with_kwargs=True),
            *(m.register_forward_hook(partial(after, name)) for name, m in self.modules.items()),
            model.register_forward_hook(end),
        ]
        if (embeddings := model.get_output_embeddings()) is not None:
            handles.append(embeddings.register_forward_hook(head))
        with hooked(handles):
            yield


def find(model: Any, layers: Sequence[Module], run: Callable[[], Any]) -> Branches:
    """Find the branches of every layer in one forward of a prompt, which `run` runs."""
    rows = partial(_rows, _width(model))
    #: What each module took and returned, in the order in which they returned.
    seen: dict[Module, tuple[Tensor | None, Tensor | None]] = {}

    def note(module: Module, args: Any, kwargs: Any, output: Any) -> None:
        given = rows(args or kwargs.get("hidden_states"))
        seen.setdefault(module, (given, rows(output)))

    with hooked(m.register_forward_hook(note, with_kwargs=True) for m in model.modules()):
        run()
    norms = [m for m in seen if "norm" in type(m).__name__.lower()]
    modules: dict[str, Module] = {}
    for at, layer in enumerate(layers):
        before, after = seen.get(layer, (None, None))
        if before is None or after is None:
            continue
        within = set(layer.modules()) - {layer}
        returned = ((module, value) for module, (_, value) in seen.items() if module in within)
        inner = [(m, value) for m, value in returned if value is not None]
        room = _ADDS_UP * float(after.norm())
        for (first, one), (second, two) in combinations(inner, 2):
            if one.shape == two.shape == before.shape and (
                float((one + two - (after - before)).norm()) <= room
            ):
                modules[f"attention.{at}"], modules[f"mlp.{at}"] = first, second
                break
        taken = ((norm, seen[norm][0]) for norm in norms)
        following = (n for n, value in taken if value is not None and torch.equal(value, after))
        if (norm := next(following, None)) is not None:
            modules[f"normed.{at}"] = norm
    return Branches(modules)


def collect_branch_values(
    reference: Mapping[str, Tensor], runs: Sequence[Any]
) -> dict[str, Tensor]:
    """Return what the branches of the observed layers added to the stream, by `str(Site)`.

    The recorded forward of an observation is the one with bitwise the same value. Observations of
    edited runs have none. "uncapped" are the logits before the soft cap. An attention output is
    left out if the layer's input is observed, because it follows from the observations.
    """
    sites = {Site.parse(name): value for name, value in reference.items()}
    observed: dict[Site, Tensor] = {}
    for site, value in sites.items():
        own = (run for run in runs if site.step < len(run.branches) and run.gave(site, value))
        run = None if site.run == "edited" else next(own, None)
        for name, recorded in (run.branches[site.step] if run else {}).items():
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


def _width(model: Any) -> int:
    return int(model.config.get_text_config().hidden_size)


def _rows(width: int, value: Any) -> Tensor | None:
    """Return a copy [tokens, width] of a tensor, or of the first one in a tuple, if it has rows."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() % width:
        return None
    return value.detach().reshape(-1, width).clone()

"""One-layer tests: find the layer that introduces an error; later layers only inherit it.

Every layer of the reference receives the stream that the candidate had before that layer, in
float32 and in the bf16 baseline runs. If the candidate's output lies within the noise floor, its
layer computed correctly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.spec.generated_tokens import in_precision
from conformance.spec.records import Case, Precision, Site
from conformance.spec.scenario import built_in

if TYPE_CHECKING:  # a worker whose engine needs no torch imports this module too
    from torch import Tensor

#: How many times further from the reference than any baseline run an observation is tested.
_SUSPICIOUS = {Precision.BF16: 3.0, Precision.FLOAT32: 30.0}


def _reference(model: Any, case: Case) -> Any:
    from safetensors.torch import load_file

    values = load_file(case.observed)
    fed = unedited(values)
    return [
        _fed(model, prompt, {s.layer: rows for s, rows in fed.items() if s.prompt == index})
        for index, prompt in enumerate(case.prompts)
    ]


def _fed(model: Any, prompt: str, own: Mapping[int | None, Tensor]) -> Mapping[str, Any]:
    """Return what each layer, and the head, computes from the candidate's stream before it."""
    made: dict[int, Tensor] = {}

    def feed(layer: int) -> Any:
        def edit(stream: Tensor, _: Any) -> Tensor:
            before = own.get(layer - 1)
            if layer in own and (layer == 0 or (before is not None and len(before) == len(stream))):
                made[layer] = stream.clone()
            taken_over = own.get(layer)
            fits = taken_over is not None and taken_over.shape == stream.shape
            return taken_over.to(stream) if taken_over is not None and fits else stream

        return edit

    layers = len(model.modules)
    if not own:
        return {}
    run = model.run(prompt, edits={layer: feed(layer) for layer in range(layers)})
    return {"stream": made} | ({"logits": run.logits} if layers - 1 in own else {})


ONE_LAYER = built_in(
    "one_layer",
    "One layer: each layer of the reference with the candidate's own input.",
    __file__,
    reference=_reference,
)


def case_of(case: Case, folder: str, observations: Path) -> Case:
    """Return the one-layer test of what a column observed in a case; `folder` is the column's."""
    return Case(
        scenario=ONE_LAYER.name,
        name=f"{folder}.{case.scenario}.{case.name}",
        prompts=case.prompts,
        observed=str(observations),
    )


def unedited(values: Mapping[str, Tensor]) -> dict[Site, Tensor]:
    """Return the streams of the prompts, without generated steps and edited runs."""
    sites = {Site.parse(name): value for name, value in values.items()}
    return {
        site: value
        for site, value in sites.items()
        if site.name == "stream" and not site.step and site.run != "edited" and value.ndim == 2
    }


def suspicious(
    observed: Mapping[str, Tensor],
    members: Mapping[str, Mapping[str, Tensor]],
    precision: Precision = Precision.BF16,
) -> bool:
    """Return whether streams were read and an unedited run's logits look wrong (a cheap check)."""
    reference = members.get("truth", {})
    baseline_runs = [values for name, values in members.items() if in_precision(name, precision)]
    if len(unedited(observed)) < 2:
        return False
    for name, value in observed.items():
        site = Site.parse(name)
        known = reference.get(name)
        if site.name != "logits" or site.step or site.run == "edited" or known is None:
            continue
        allowed = max((_off(run[name], known) for run in baseline_runs if name in run), default=0.0)
        if value.shape != known.shape or not _off(value, known) <= _SUSPICIOUS[precision] * allowed:
            return True
    return False


def _off(value: Tensor, reference: Tensor) -> float:
    """Return the relative distance, ignoring a constant shift of all logits."""
    value, reference = (
        value.double() - value.double().mean(),
        reference.double() - reference.double().mean(),
    )
    return float((value - reference).norm() / reference.norm().clamp_min(1e-30))

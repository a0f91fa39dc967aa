"""nnterp: nnsight with the same module names for all models."""

from __future__ import annotations

from typing import Any

import torch
from nnsight import save
from nnterp import StandardizedTransformer

from conformance.engines.libraries.adapter import (
    Ends,
    LibraryEngine,
    Place,
    PromptBatch,
    ends_of,
    named,
)
from conformance.engines.loading import attention, generate_greedily
from conformance.spec.programs import ModelPart
from conformance.spec.records import Job

_ACCESSORS = {
    ModelPart.INPUT: "layers_input",
    ModelPart.ATTENTION_INPUT: "attentions_input",
    ModelPart.ATTENTION: "attentions_output",
    ModelPart.MLP_INPUT: "mlps_input",
    ModelPart.MLP: "mlps_output",
    ModelPart.STREAM: "layers_output",
}


class Standardized:
    def __init__(self, job: Job) -> None:
        dtype = getattr(torch, job.precision.dtype)
        self.model = StandardizedTransformer(
            str(job.checkpoint), dtype=dtype, device_map="cpu", **attention(job.checkpoint)
        )
        self.model.dispatch()
        self.layers = int(self.model.num_layers)
        generate_greedily(self.model._model, self.model.tokenizer)

    def identity(self) -> dict[str, str]:
        return {"dtype": str(self.model._model.dtype)}

    def tokenize(self, prompt: str) -> list[int]:
        return [int(token) for token in self.model.tokenizer(prompt).input_ids]

    def run(self, batch: PromptBatch) -> list[Ends]:
        model, steps, places = self.model, batch.steps, batch.places
        for place in places:
            named(_ACCESSORS, place, "nnterp")
        logits: Any
        tokens: Any
        with model.generate(batch.prompts, max_new_tokens=steps, do_sample=False) as tracer:
            logits = save([])
            for _step in tracer.iter[:steps]:
                for place in places:
                    act(model, batch, place)
                logits.append(model.logits[:, -1])
            tokens = save(model.generator.output)
        return ends_of(logits, tokens)


def act(model: Any, batch: PromptBatch, place: Place) -> None:
    """Read a place in the running trace, and write the changed value back."""
    part, layer = place
    accessor = getattr(model, _ACCESSORS[ModelPart(part)])
    changed = batch.pass_by(place, accessor[layer])
    if changed is not None:
        accessor[layer] = changed


def open_engine(job: Job) -> LibraryEngine:
    return LibraryEngine(job, Standardized(job))

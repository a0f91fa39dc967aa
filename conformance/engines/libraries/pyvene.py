"""pyvene: interventions that are functions, at components named by pyvene or the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyvene
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from conformance.engines.libraries.adapter import (
    Ends,
    LibraryEngine,
    Place,
    PromptBatch,
    ends_of,
    named,
)
from conformance.engines.loading import attention, generate_greedily
from conformance.engines.tree import layer_path
from conformance.spec.programs import ModelPart
from conformance.spec.records import Job

_COMPONENTS = {
    ModelPart.INPUT: "block_input",
    ModelPart.ATTENTION_INPUT: "attention_input",
    ModelPart.ATTENTION: "attention_output",
    ModelPart.MLP_INPUT: "mlp_input",
    ModelPart.MLP: "mlp_output",
    ModelPart.STREAM: "block_output",
}


class Intervenable:
    def __init__(self, job: Job) -> None:
        folder = str(job.checkpoint)
        dtype = getattr(torch, job.precision.dtype)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, **attention(job.checkpoint)
        )
        self.model = model.eval()
        self.layers = int(self.model.config.num_hidden_layers)
        self.path = layer_path(self.model, self.layers)
        self.mapped = type(self.model) in pyvene.type_to_module_mapping
        generate_greedily(self.model, self.tokenizer)

    def identity(self) -> dict[str, str]:
        named_by = "pyvene" if self.mapped else "the model's own module names"
        return {"dtype": str(self.model.dtype), "components": named_by}

    def tokenize(self, prompt: str) -> list[int]:
        return [int(token) for token in self.tokenizer(prompt).input_ids]

    def _component(self, place: Place) -> str:
        """Return pyvene's component name or, for a model it does not name, the module's path."""
        part, layer = place
        if self.mapped or part not in (ModelPart.STREAM, ModelPart.INPUT):
            return named(_COMPONENTS, place, "pyvene")
        side = "output" if part == ModelPart.STREAM else "input"
        return f"{self.path}[{layer}].{side}"

    def run(self, batch: PromptBatch) -> list[Ends]:
        interventions = [
            {
                "layer": place[1],
                "component": self._component(place),
                "intervention": _acting(batch, place),
            }
            for place in batch.places
        ]
        intervenable = pyvene.IntervenableModel(interventions, model=self.model)
        _, made = intervenable.generate(
            self.tokenizer(batch.prompts, return_tensors="pt", padding=True),
            unit_locations=None,  # every position of the prompt and of the generated tokens
            intervene_on_prompt=True,
            max_new_tokens=batch.steps,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return ends_of(made.logits, made.sequences)


def _acting(batch: PromptBatch, place: Place) -> Callable[..., Tensor]:
    """Return an intervention as a function: pyvene accepts no other callable."""

    def act(base: Tensor, source: Any, **_: Any) -> Tensor:
        del source  # unused: no source run
        changed = batch.pass_by(place, base)
        return base if changed is None else changed

    return act


def open_engine(job: Job) -> LibraryEngine:
    return LibraryEngine(job, Intervenable(job))

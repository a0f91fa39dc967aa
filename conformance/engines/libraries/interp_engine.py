"""interp-engine on transformers, with its eager backend, points and hook manager."""

from __future__ import annotations

from functools import partial

import torch
from interp_engine import EagerModel, HookManager, generate_stream
from torch import Tensor

from conformance.engines.libraries.adapter import Ends, LibraryEngine, Place, PromptBatch, named
from conformance.engines.loading import attention
from conformance.spec.programs import ModelPart
from conformance.spec.records import Job

_POINTS = {
    ModelPart.EMBEDDING: "embeddings",
    ModelPart.INPUT: "resid_pre",
    ModelPart.ATTENTION_INPUT: "attn_in",
    ModelPart.ATTENTION: "attn_out",
    ModelPart.MLP_INPUT: "mlp_in",
    ModelPart.MLP: "mlp_out",
    ModelPart.STREAM: "resid_post",
    ModelPart.NORM: "final_norm",
}


class Eager:
    def __init__(self, job: Job) -> None:
        self.model = EagerModel(
            str(job.checkpoint),
            device="cpu",
            dtype=job.precision.dtype,
            **attention(job.checkpoint),
        )
        self.layers = int(self.model.n_layers)

    def identity(self) -> dict[str, str]:
        return {
            "dtype": str(self.model.dtype),
            "attention": str(self.model.attn_implementation),
            "prompts": "one after the other",
        }

    def tokenize(self, prompt: str) -> list[int]:
        # Without this, it adds the tokenizer's begin token to every text.
        return [int(token) for token in self._tokens(prompt)[0]]

    def _tokens(self, prompt: str) -> Tensor:
        tokens: Tensor = self.model.to_tokens(prompt, prepend_bos=False)
        return tokens

    def run(self, batch: PromptBatch) -> list[Ends]:
        """Run the prompts one at a time, since its generation takes only one."""
        ends = []
        for prompt, alone in batch.each():
            with HookManager() as hooks:
                for place in alone.places:
                    point = named(_POINTS, place, "interp-engine")
                    module, side = self.model.resolve_point(point, place[1])
                    hooks.write(module, partial(_act, alone, place), point=side)
                steps = list(
                    generate_stream(
                        self.model,
                        self._tokens(prompt),
                        max_tokens=batch.steps,
                        temperature=0.0,
                        stop_at_eos=False,
                    )
                )
            tokens = [torch.tensor([step.token_id]) for step in steps]
            ends.append(Ends([step.logits for step in steps], tokens))
        return ends


def _act(batch: PromptBatch, place: Place, whole: Tensor) -> Tensor:
    changed = batch.pass_by(place, whole)
    return whole if changed is None else changed


def open_engine(job: Job) -> LibraryEngine:
    return LibraryEngine(job, Eager(job))

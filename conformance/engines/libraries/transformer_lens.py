"""TransformerLens' TransformerBridge, with its own hook names.

By default it computes with the checkpoint's weights unchanged and takes tokens with their attention
mask. The option `compatibility` processes the weights as HookedTransformer did
(`enable_compatibility_mode`: norms are folded into the following weights, and weights that write to
the stream are centred), which changes the stream. With `texts` it takes a batch's texts and makes
the mask itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from conformance.engines.libraries.adapter import (
    Ends,
    LibraryEngine,
    Place,
    PromptBatch,
    ends_of,
    named,
)
from conformance.spec.programs import ModelPart
from conformance.spec.records import Job

_NAMES = {
    ModelPart.INPUT: "blocks.{layer}.hook_resid_pre",
    ModelPart.ATTENTION: "blocks.{layer}.hook_attn_out",
    ModelPart.MLP: "blocks.{layer}.hook_mlp_out",
    ModelPart.STREAM: "blocks.{layer}.hook_resid_post",
}


class Bridge:
    def __init__(self, job: Job) -> None:
        dtype = getattr(torch, job.precision.dtype)
        self.model = TransformerBridge.boot_transformers(str(job.checkpoint), dtype=dtype)
        self.compatibility = bool(job.backend.options.get("compatibility"))
        if self.compatibility:
            self.model.enable_compatibility_mode(disable_warnings=True)
        self.texts = bool(job.backend.options.get("texts"))
        self.layers = int(self.model.cfg.n_layers)

    def identity(self) -> dict[str, str]:
        return {
            "dtype": str(next(self.model.original_model.parameters()).dtype),
            "weights": "processed" if self.compatibility else "as they are",
            "given": "texts" if self.texts else "tokens and their mask",
        }

    def tokenize(self, prompt: str) -> list[int]:
        # Without this, it adds the tokenizer's begin token to every text.
        return [int(token) for token in self.model.to_tokens(prompt, prepend_bos=False)[0]]

    def run(self, batch: PromptBatch) -> list[Ends]:
        hooks = [
            (named(_NAMES, place, "TransformerLens"), partial(_act, batch, place))
            for place in batch.places
        ]
        asked = {"input": batch.prompts} if self.texts else self._tokens(batch)
        with self.model.hooks(fwd_hooks=hooks):
            generated = self.model.generate(
                **asked,
                max_new_tokens=batch.steps,
                do_sample=False,
                stop_at_eos=False,
                prepend_bos=False,
                output_logits=True,
                return_type="tokens",
                verbose=False,
            )
        return ends_of(generated.logits, generated.sequences)

    def _tokens(self, batch: PromptBatch) -> dict[str, Tensor]:
        """Return a batch's tokens, padded on the left, and the attention mask."""
        tokens = self.model.to_tokens(batch.prompts, prepend_bos=False, padding_side="left")
        width = tokens.shape[1]
        own = [[0] * (width - length) + [1] * length for length in batch.lengths]
        return {"input": tokens, "attention_mask": torch.tensor(own)}


def _act(batch: PromptBatch, place: Place, whole: Tensor, hook: Any) -> Tensor | None:
    del hook  # names the point, which `place` already does
    return batch.pass_by(place, whole)


def open_engine(job: Job) -> LibraryEngine:
    return LibraryEngine(job, Bridge(job))

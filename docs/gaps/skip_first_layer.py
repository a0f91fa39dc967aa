"""transformers' cache tells what a mask covers by the first layer of a kind, also where that layer
is left out: a batch then attends to its padding, from the second step on.

    python docs/gaps/skip_first_layer.py

exits 1 while the gap is there. A layer left out (nnsight's `skip`, or any forward that returns what
it was given) stores no keys. `create_causal_mask` asks the cache how long the keys are, and where
the queries begin, of the first layer with full attention; `create_sliding_window_causal_mask` of
the first with a window. If that layer is the one left out, each step after the prompt is taken for
the first: its mask has one column, that of the first position, which is padding in the shorter
prompt, and is broadcast over all keys. With a cache that answers for a layer that ran all is right.
Prompts without padding are right anyway.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

TOKENS = torch.tensor([[3, 4, 5, 6, 7], [0, 0, 0, 1, 2]])
MASK = (TOKENS > 0).long()
LAYERS = 4


class OfALayerThatRan(DynamicCache):
    """Tells what a mask covers by a layer of the same kind that holds keys."""

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return super().get_mask_sizes(query_length, self.that_ran(layer_idx))

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return super().get_query_offset(self.that_ran(layer_idx))

    def that_ran(self, layer_idx: int) -> int:
        kind = self.is_sliding[layer_idx]
        ran = (i for i, layer in enumerate(self.layers) if layer.get_seq_length())
        return next((i for i in ran if self.is_sliding[i] == kind), layer_idx)


def model_without(family: str, layer: int | None, columns: list[int]) -> PreTrainedModel:
    """Four layers of random weights, one of them left out; `columns` gets the masks' lengths."""
    torch.manual_seed(0)
    grouped = {} if family == "gpt2" else {"num_key_value_heads": 2, "head_dim": 32}
    config = AutoConfig.for_model(
        family, vocab_size=16, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=2, initializer_range=0.3, **grouped,
        pad_token_id=0, bos_token_id=None, eos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    layers = model.transformer.h if family == "gpt2" else model.model.layers
    if layer is not None:

        def leave_out(hidden_states: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
            tensors = (one for one in (*rest, *named.values()) if isinstance(one, torch.Tensor))
            columns.extend(mask.shape[-1] for mask in tensors if mask.dim() == 4)
            return hidden_states

        layers[layer].forward = leave_out
    return model


def logits(
    model: PreTrainedModel, rows: slice, cache: type[DynamicCache]
) -> tuple[torch.Tensor, ...]:
    """Of the last of these rows, in each of two steps, float32."""
    kept = MASK[rows].any(0)
    out = model.generate(
        TOKENS[rows][:, kept], attention_mask=MASK[rows][:, kept], max_new_tokens=2,
        do_sample=False, output_logits=True, return_dict_in_generate=True,
        past_key_values=cache(config=model.config),
    )  # fmt: skip
    return tuple(step[-1] for step in out.logits)


def off(batch: tuple[torch.Tensor, ...], alone: tuple[torch.Tensor, ...]) -> list[float]:
    return [float((b - a).norm() / a.norm()) for b, a in zip(batch, alone, strict=True)]


print("transformers", transformers.__version__, "torch", torch.__version__)
print("the shorter of two prompts, its logits against itself alone: steps 0 and 1")
gap = mended = 0.0
for family in ("llama", "gemma2", "gpt2"):
    for layer in (None, 0, 1, 2):
        columns: list[int] = []
        model = model_without(family, layer, columns)
        alone = logits(model, slice(1, 2), DynamicCache)
        columns.clear()
        apart = off(logits(model, slice(0, 2), DynamicCache), alone)
        masks = f"; its masks have {columns} columns" if columns else ""
        right = off(logits(model, slice(0, 2), OfALayerThatRan), alone)
        words = [f"{error:.1e}" for error in apart]
        print(f"{family} without layer {layer}: {words}{masks}; with that cache {right[1]:.1e}")
        gap, mended = max(gap, *apart), max(mended, *right)
sys.exit(gap > 1e-4 >= mended)

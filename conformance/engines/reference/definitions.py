"""Other definitions of a model, used by engines but not by transformers, computed in float32.

Each is transformers' own model with the differing parts replaced. An engine under an entry of
known.yaml that names a definition is compared with it as strictly as with the reference. The names
are in `conformance.spec.records.PREDICTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from conformance.engines.tree import exchanged
from conformance.spec.records import VLLM_BLOOM, VLLM_GPT_BIGCODE, VLLM_GPT_OSS

#: The limit in vLLM's kernel, for every gpt_oss.
_LIMIT = 7.0

#: Returns a context manager that applies a definition to a loaded model.
Entered = Callable[[Any], AbstractContextManager[None]]


def definitions(module: Any) -> Mapping[str, Entered]:
    """Return the other definitions of this model, by name."""
    config = module.config.get_text_config()
    match config.model_type:
        case "bloom":
            return {VLLM_BLOOM: _bloom}
        case "gpt_oss" if getattr(config, "swiglu_limit", _LIMIT) != _LIMIT:
            return {VLLM_GPT_OSS: _gpt_oss}
        case "gpt_bigcode":
            return {VLLM_GPT_BIGCODE: _gpt_bigcode}
    return {}


def _gpt_bigcode(module: Any) -> AbstractContextManager[None]:
    """Add the learned positions to the stream again where a second pipeline stage begins."""
    body = module.transformer
    block = body.h[len(body.h) // 2]
    own = block.forward

    def forward(value: Tensor, *args: Any, layer_past: Any = None, **kwargs: Any) -> Any:
        before = 0 if layer_past is None else layer_past.get_seq_length(len(body.h) // 2)
        places = torch.arange(before, before + value.shape[1], device=value.device)
        return own(value + body.wpe(places), *args, layer_past=layer_past, **kwargs)

    return exchanged({block: forward})


def _gpt_oss(module: Any) -> AbstractContextManager[None]:
    """Clamp activations to 7, whatever the config says."""
    limited = (child for child in module.modules() if hasattr(child, "limit"))
    return exchanged(dict.fromkeys(limited, _LIMIT), "limit")


def _bloom(module: Any) -> AbstractContextManager[None]:
    """Use the exact GELU, and add the residuals after attention and MLP, not inside them."""
    forwards: dict[Any, Callable[..., Any]] = {}
    for child in module.modules():
        if type(child).__name__ == "BloomGelu":
            forwards[child] = gelu
        elif type(child).__name__ == "BloomBlock":
            forwards[child] = _bloom_block(child)
    return exchanged(forwards)


def _bloom_block(block: Any) -> Callable[..., Any]:
    def forward(value: Tensor, alibi: Tensor, attention_mask: Tensor, **kwargs: Any) -> Any:
        for unused in ("past_key_values", "position_ids", "cache_position"):
            kwargs.pop(unused, None)
        after_norm = block.apply_residual_connection_post_layernorm
        nothing = value.new_zeros(value.shape)
        normed = block.input_layernorm(value)
        residual = normed if after_norm else value
        kwargs |= {"attention_mask": attention_mask, "alibi": alibi}
        attended, weights = block.self_attention(normed, nothing, **kwargs)
        value = attended + residual
        normed = block.post_attention_layernorm(value)
        residual = normed if after_norm else value
        return block.mlp(normed, nothing) + residual, weights

    return forward

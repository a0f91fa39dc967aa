"""Tiny random models of transformers' families, built in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

WIDTH, HEADS, VOCABULARY = 32, 4, 40
_GROUPED = {"intermediate_size": 48, "num_key_value_heads": 2}
_EXPERTS = {"num_key_value_heads": 2, "num_experts_per_tok": 2}

#: What a family's config has besides what all have. Between them: RMSNorm of both formulas and
#: LayerNorm, gated and plain MLPs, Linear and Conv1D, norms after a branch and inside attention,
#: parallel branches, experts of both layouts, and a model without attention.
FAMILIES: dict[str, dict[str, Any]] = {
    "bloom": {},
    "cohere": _GROUPED,
    "falcon": {},
    "gemma2": {**_GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_GROUPED, "head_dim": 8},
    "gpt2": {},
    "gpt_neox": {"intermediate_size": 48},
    "gpt_oss": {**_EXPERTS, "intermediate_size": 24, "num_local_experts": 4, "head_dim": 8},
    "llama": _GROUPED,
    "mamba2": {"head_dim": 8, "num_heads": 8, "state_size": 8},
    "mixtral": {**_EXPERTS, "intermediate_size": 24, "num_local_experts": 4},
    "olmo2": _GROUPED,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": WIDTH},
    "phi3": _GROUPED,
    "qwen3": {**_GROUPED, "head_dim": 8},
    "qwen3_moe": {**_EXPERTS, "moe_intermediate_size": 24, "num_experts": 4},
}
WITH_EXPERTS = ("mixtral", "qwen3_moe", "gpt_oss")


def build(family: str, layers: int = 3, *, rough: bool = False, **more: Any) -> Any:
    """Return a model in float32 that never ends its text. If it is `rough`, its norms and biases do
    something.
    """
    torch.manual_seed(3)
    config = CONFIG_MAPPING[family](
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        initializer_range=0.3,
        pad_token_id=0,
        **{**FAMILIES[family], **more},
    )
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for value in module.parameters() if rough else ():
        if value.ndim < 3:
            value.data.add_(torch.randn_like(value), alpha=0.1)
    module.generation_config.pad_token_id = 0
    module.generation_config.eos_token_id = None
    return module.float().eval().requires_grad_(False)


def tokenized(text: str) -> Any:
    """Return an id for every letter, as a tokenizer does."""
    return SimpleNamespace(input_ids=[1 + ord(letter) % 39 for letter in text])

"""Definitions that engines have: computed from transformers' own model, and gone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import GELU
from transformers import AutoModelForCausalLM, BloomConfig, GPTBigCodeConfig, LlamaConfig

from conformance.engines.reference.definitions import definitions
from conformance.spec.records import PREDICTIONS, VLLM_BLOOM, VLLM_GPT_BIGCODE

IDS = torch.tensor([[1, 2, 3, 4, 5]])


def made(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@torch.inference_mode()
def logits(module: Any) -> torch.Tensor:
    return module(IDS, use_cache=False).logits


@pytest.fixture
def bloom() -> Any:
    return made(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2))


def test_bloom_has_the_exact_gelu_and_residuals_outside(bloom: Any) -> None:
    before = logits(bloom)
    seen: list[torch.Tensor] = []
    block = bloom.transformer.h[0]
    hook = block.self_attention.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    usual = logits(bloom)
    with definitions(bloom)[VLLM_BLOOM](bloom):
        other = logits(bloom)
    hook.remove()
    assert torch.equal(usual, before) and torch.equal(logits(bloom), before)
    assert not torch.equal(other, before)
    first = bloom.transformer.word_embeddings_layernorm(bloom.transformer.word_embeddings(IDS))
    assert torch.allclose(seen[0] - seen[1], first, atol=1e-5)
    for child in block.mlp.children():
        if type(child).__name__ == "BloomGelu":
            child.forward = GELU().forward
    for child in bloom.transformer.h[1].mlp.children():
        if type(child).__name__ == "BloomGelu":
            child.forward = GELU().forward
    assert torch.allclose(logits(bloom), other, atol=1e-5)


def test_gpt_bigcode_adds_positions_again_on_the_second_stage() -> None:
    config = GPTBigCodeConfig(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=16)
    module = made(config)
    before = logits(module)
    with definitions(module)[VLLM_GPT_BIGCODE](module):
        other = logits(module)
        steps = module.generate(IDS, max_new_tokens=4, do_sample=False, pad_token_id=0)
        whole = module(steps[:, :-1], use_cache=False).logits[0, -1]
    assert not torch.allclose(other, before, atol=1e-3)
    assert int(whole.argmax()) == int(steps[0, -1])
    assert torch.equal(logits(module), before)


def test_other_models_have_none_and_all_are_known() -> None:
    plain = LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    assert definitions(made(plain)) == {}
    assert {VLLM_BLOOM, VLLM_GPT_BIGCODE} <= PREDICTIONS.keys()

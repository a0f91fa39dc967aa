"""Predictions for entries of known.yaml: definitions of a model that the reference computes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

VLLM_BLOOM = "vllm-bloom"
VLLM_GPT_BIGCODE = "vllm-gpt_bigcode"
VLLM_GPT_OSS = "vllm-gpt_oss"

#: Every prediction by its name in `prediction:`, with its meaning.
PREDICTIONS: Mapping[str, str] = MappingProxyType(
    {
        VLLM_BLOOM: (
            "Bloom with the exact GELU, and the residuals added after attention and MLP, not "
            "inside of them"
        ),
        VLLM_GPT_BIGCODE: (
            "GPTBigCode whose learned positions are added once more where the second of two stages "
            "begins"
        ),
        VLLM_GPT_OSS: "gpt_oss with activations held to 7, whatever `swiglu_limit` is",
    }
)

#: Prefix of the member under which the reference stores a definition's values.
DEFINITION = "definition-"

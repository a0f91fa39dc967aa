"""What an entry of known.yaml may predict: definitions of a model that the reference computes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

VLLM_BLOOM = "vllm-bloom"
VLLM_GPT_BIGCODE = "vllm-gpt_bigcode"
VLLM_GPT_OSS = "vllm-gpt_oss"

#: Every prediction by the name that `prediction:` gives it, and what it says.
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

#: Begins the name under which the reference keeps what a definition gives.
DEFINITION = "definition-"

"""The attention implementation of transformers that computes what a config says."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig


def attention(checkpoint: Path) -> dict[str, str]:
    """Return the `attn_implementation` argument if transformers' default does not follow the
    config: sdpa and the faster implementations ignore a soft cap on the scores (Gemma 2).
    """
    config = AutoConfig.from_pretrained(checkpoint).get_text_config()
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return {"attn_implementation": "eager"} if capped else {}

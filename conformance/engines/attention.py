"""Which of transformers' attentions computes what a config says."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig


def attention(checkpoint: Path) -> dict[str, str]:
    """The attention to ask for where transformers' default does not compute what the config says:
    sdpa, and whatever else is faster, leaves out a cap on the scores (Gemma 2).
    """
    config = AutoConfig.from_pretrained(checkpoint).get_text_config()
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return {"attn_implementation": "eager"} if capped else {}

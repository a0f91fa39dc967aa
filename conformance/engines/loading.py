"""How transformers loads a checkpoint, and generates with it, as the other engines do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig


def attention(checkpoint: Path) -> dict[str, str]:
    """Return the `attn_implementation` argument if transformers' default does not follow the
    config: sdpa and the faster implementations ignore a soft cap on the scores (Gemma 2).
    """
    config = AutoConfig.from_pretrained(checkpoint).get_text_config()
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return {"attn_implementation": "eager"} if capped else {}


def generate_greedily(module: Any, tokenizer: Any) -> None:
    """Make the model generate greedily, for exactly the requested steps: a checkpoint's own
    settings (sampling, an end token) would make the sequences differ from other engines'.
    """
    settings = module.generation_config
    settings.eos_token_id = None
    settings.do_sample = False
    settings.temperature = settings.top_p = settings.top_k = None
    settings.pad_token_id = tokenizer.pad_token_id or 0

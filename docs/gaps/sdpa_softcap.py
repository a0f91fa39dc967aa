"""transformers' sdpa attention leaves out the cap of the attention's scores that a config asks for.

    python docs/gaps/sdpa_softcap.py

exits 1 while the gap is there. Gemma-2's attention hands its cap (`attn_logit_softcapping`) to the
attention function as `softcap`. The eager one caps the scores; `sdpa_attention_forward` takes the
argument among those that it does not know, and drops it without a word. Without a cap both agree.
"""

from __future__ import annotations

import sys

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = torch.arange(3, 15)[None]


def logits(attention: str, cap: float | None) -> torch.Tensor:
    """Of two layers of random weights, float32."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "gemma2", vocab_size=16, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, initializer_range=0.3,
        attn_logit_softcapping=cap, attn_implementation=attention,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        return model(TOKENS).logits


print("transformers", transformers.__version__, "torch", torch.__version__)
apart = {}
for cap in (None, 50.0, 1.0):
    eager, sdpa = logits("eager", cap), logits("sdpa", cap)
    apart[cap] = float((sdpa - eager).norm() / eager.norm())
    changed = float((eager - logits("eager", None)).norm() / eager.norm())
    print(f"cap {cap}: sdpa is {apart[cap]:.1e} off eager; the cap changes eager by {changed:.1e}")
sys.exit(apart[1.0] > 1e-4 >= apart[None])

"""vLLM's CPU rotary kernel on what latent attention (DeepSeek) hands it.

    python docs/gaps/mla_rotary_cpu.py

exits 1 while the gap is there. `RotaryEmbedding.forward_cpu` gives `ops.rotary_embedding` the
queries as [tokens, heads, 64], and the keys as a view into the rows of the latent cache. The
kernel takes the heads of the first for more tokens' rows, and the second for contiguous: it
rotates other numbers, and overwrites the latent values beside the key. Checkpoints with YaRN
positions (the published DeepSeek models) do not come this way and are computed right.
"""

from __future__ import annotations

import sys

import torch
from vllm import _custom_ops as ops

TOKENS, HEADS, PLAIN, ROTARY, LATENT = 6, 4, 64, 64, 512

torch.manual_seed(0)
positions = torch.arange(TOKENS)
inverse = 1 / 10000 ** (torch.arange(0, ROTARY, 2).float() / ROTARY)
angles = torch.outer(torch.arange(64).float(), inverse)
table = torch.cat([angles.cos(), angles.sin()], -1)


def rotated(value: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, rotary]: pairs of neighbours turned by their position's angle."""
    cosine, sine = angles[:TOKENS].cos()[:, None], angles[:TOKENS].sin()[:, None]
    even, odd = value[..., ::2], value[..., 1::2]
    return torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).flatten(-2)


queries = torch.randn(TOKENS, HEADS, PLAIN + ROTARY)
latent = torch.randn(TOKENS, LATENT + ROTARY)
before = latent[:, :LATENT].clone()
query, key = queries[..., PLAIN:], latent[:, LATENT:].unsqueeze(1)
wanted = {"query": rotated(query), "key": rotated(key)}
ops.rotary_embedding(positions, query, key, ROTARY, table, False)
wrong = [
    f"{name}: off by {float((got - wanted[name]).norm() / wanted[name].norm()):.0%} of its length"
    for name, got in (("query", query), ("key", key))
    if not torch.allclose(got, wanted[name], atol=1e-5)
]
if not torch.equal(latent[:, :LATENT], before):
    wrong.append("the latent values beside the key were overwritten")
sys.stdout.write("\n".join(wrong or ["as it should be"]) + "\n")
sys.exit(bool(wrong))

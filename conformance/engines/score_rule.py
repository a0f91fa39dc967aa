"""Attention probabilities computed from queries and keys as a trace reads them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from conformance.engines import Refused
from conformance.spec.records import Site

#: The number of positions that a rule holds.
POSITIONS = 128


@dataclass(frozen=True)
class ScoreRule:
    """How a layer's attention turns queries and keys before rotary positions into probabilities.

    `cos` and `sin`, [positions, pairs], rotate the first 2 · pairs columns of a head: column i with
    i + pairs or, if `adjacent`, 2i with 2i + 1. `bias`, [1 or heads, positions, positions], is
    added to the scores: the causal mask, the window, ALiBi. `cap` is 0 if scores have no soft cap.
    `sinks`, [heads or 0], are further scores of every row, whose probability is dropped.
    """

    cos: Tensor
    sin: Tensor
    bias: Tensor
    sinks: Tensor
    scale: Tensor
    cap: Tensor
    adjacent: Tensor

    def probabilities(self, query: Tensor, key: Tensor) -> Tensor:
        """Return [tokens, heads, tokens] for a prompt's queries and keys [tokens, heads, width],
        rounded as in eager attention: only the softmax is computed in float32.
        """
        tokens, heads, _ = query.shape
        keys = self._rotated(key).repeat_interleave(heads // key.shape[1], dim=1)
        scores = torch.einsum("qhw,khw->hqk", self._rotated(query), keys) * self.scale
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores + self.bias[:, :tokens, :tokens].to(scores.dtype)
        if len(self.sinks):
            sinks = self.sinks.to(scores.dtype)[:, None, None]
            scores = torch.cat([scores, sinks.expand(-1, tokens, 1)], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32)[..., :tokens].transpose(0, 1)
        return weights.to(query.dtype).contiguous()

    def _rotated(self, rows: Tensor) -> Tensor:
        """Return the rows [tokens, heads, width], each rotated by its position."""
        cos, sin = (table[: len(rows), None].to(rows.dtype) for table in (self.cos, self.sin))
        turned, rest = rows.tensor_split([2 * cos.shape[-1]], dim=-1)
        if self.adjacent:
            one, other = turned[..., ::2], turned[..., 1::2]
        else:
            one, other = turned.chunk(2, dim=-1)
        pair = (one * cos - other * sin, other * cos + one * sin)
        joined = torch.stack(pair, dim=-1).flatten(-2) if self.adjacent else torch.cat(pair, dim=-1)
        return torch.cat([joined, rest], dim=-1)


#: The field of a rule → its name in the reference's observations of the probe.
FIELDS = {part.name: f"rule_{part.name}" for part in fields(ScoreRule)}


def read_rule(observations: Path, layer: int, device: torch.device) -> ScoreRule:
    """Load a layer's rule. Raises Refused if the reference found none."""
    with safe_open(observations, "pt") as held:
        names = {name: f"truth|{Site(site, layer=layer)}" for name, site in FIELDS.items()}
        if not set(names.values()) <= set(held.keys()):
            raise Refused(
                f"no rule was found by which transformers' attention of layer {layer} "
                "makes its probabilities of queries and keys"
            )
        return ScoreRule(**{name: held.get_tensor(key).to(device) for name, key in names.items()})

"""The rule by which each attention of transformers' model scores queries and keys.

Scale, cap and sinks are the attention's own attributes; rotary tables, mask and ALiBi are what it
is called with. Which columns a rotation pairs is measured: the rule must give the probabilities
that eager attention returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.model_parts import Parts, every_row
from conformance.engines.reference.ensemble import CAP
from conformance.engines.reference.places import hook_within, returned_weights
from conformance.engines.score_rule import POSITIONS, ScoreRule
from conformance.engines.tree import follow, hooked

#: The largest absolute difference, in float32, between a rule's probabilities and transformers'.
_SAME = 1e-4


@contextmanager
def eager(module: Any) -> Iterator[None]:
    """Use eager attention, the only one that returns probabilities."""
    own = module.config._attn_implementation
    if own != "eager":
        module.set_attn_implementation("eager")
    try:
        yield
    finally:
        if own != "eager":
            module.set_attn_implementation(own)


@torch.inference_mode()
def find_rules(
    model: Any, layers: Sequence[Module], parts: Parts, having: Sequence[int]
) -> dict[int, ScoreRule]:
    """Return the rule of each of these layers for which one is found. The model's attention is
    eager.
    """
    seen: dict[int, dict[str, Any]] = {at: {} for at in having}

    def keep(at: int, name: str, value: Tensor) -> None:
        seen[at][name] = parts.inside.places[name].read(value, every_row)

    def keep_call(at: int, module: Module, args: Any, kwargs: Any, output: Any) -> None:
        seen[at] |= {"attention": module, "called": kwargs, "weights": returned_weights(output)}

    handles = []
    for at in having:
        handles += [
            hook_within(parts, layers[at], name, partial(keep, at, name))
            for name in ("query", "key")
        ]
        attention = follow(layers[at], parts.attention)
        handles.append(attention.register_forward_hook(partial(keep_call, at), with_kwargs=True))
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or POSITIONS
    ids = torch.arange(min(POSITIONS, limit), device=model.device)[None] % (config.vocab_size - 1)
    with hooked(handles):
        model(input_ids=ids + 1, use_cache=False)
    complete = {at: values for at, values in seen.items() if values.get("weights") is not None}
    rules = {at: _find_rule(**values) for at, values in complete.items()}
    return {at: rule for at, rule in rules.items() if rule is not None}


def _find_rule(
    attention: Any, query: Tensor, key: Tensor, called: Mapping[str, Any], weights: Tensor
) -> ScoreRule | None:
    """Return the rule that gives these weights [1, heads, tokens, tokens], or None."""
    tokens, heads, width = query.shape
    if weights.shape != (1, heads, tokens, tokens):
        return None
    own = (getattr(attention, name, None) for name in ("scaling", "inv_norm_factor"))
    scale = next((value for value in own if isinstance(value, (int, float))), width**-0.5)
    bias = query.new_full((tokens, tokens), -torch.inf).triu(1)[None]
    mask = called.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape[-2:] == (tokens, tokens):
        bias = torch.where(mask, 0.0, -torch.inf) if mask.dtype is torch.bool else mask
        bias = bias.reshape(-1, tokens, tokens)
    if (alibi := called.get("alibi")) is not None:
        bias = bias + alibi
    sinks = getattr(attention, "sinks", query.new_empty(0))
    cap = getattr(attention, CAP, None) or 0.0
    rest = (bias.float(), sinks.float(), query.new_tensor(scale), query.new_tensor(cap))
    best, found = _SAME, None
    for cos, sin, adjacent in _rotations(called.get("position_embeddings"), query):
        rule = ScoreRule(cos, sin, *rest, torch.tensor(adjacent))
        apart = float((rule.probabilities(query, key).transpose(0, 1) - weights[0]).abs().max())
        if apart < best:
            best, found = apart, rule
    return found


def _rotations(tables: Any, query: Tensor) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield the ways to rotate queries by tables of cos and sin: not at all, or by tables that have
    a column for each pair, or two: one after all others, or one after the other.
    """
    tokens, _, width = query.shape
    yield (*query.new_empty(2, tokens, 0), False)
    if not (isinstance(tables, tuple) and len(tables) == 2):
        return
    cos, sin = (table.reshape(tokens, -1).float() for table in tables)
    half = cos.shape[-1] // 2
    for columns in (slice(None), slice(half), slice(None, None, 2)):
        if 2 * cos[:, columns].shape[-1] <= width:
            yield from ((cos[:, columns], sin[:, columns], adjacent) for adjacent in (False, True))

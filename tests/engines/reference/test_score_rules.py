"""The rule of each attention gives, of the queries and keys before rotary positions, what eager
attention returns; and not of others.
"""

import pytest
import torch
from safetensors.torch import save_file

from conformance.engines import Refused
from conformance.engines.model_parts import parts_of
from conformance.engines.reference.places import PATTERN, keeping_visits, visited
from conformance.engines.reference.score_rules import find_rules
from conformance.engines.score_rule import read_rule
from conformance.engines.tree import layer_path
from tests.engines import tiny

LAYERS, TOKENS = 2, 24
#: Family → what its config has besides, so that windows, caps and partial rotations act.
FAMILIES = {
    "llama": {},
    "gpt2": {},
    "opt": {},
    "bloom": {},
    "falcon": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "phi3": {"sliding_window": 8},
    "qwen3": {},
    "olmo2": {},
    "cohere": {},
    "gemma2": {"sliding_window": 8, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"sliding_window": 8},
    "gpt_oss": {"sliding_window": 8},
}


def made(family, implementation="eager", **more):
    """A model's layers and parts, with the rules that were found."""
    model = tiny.build(family, LAYERS, rough=True, **more)
    model.set_attn_implementation(implementation)
    path = layer_path(model, LAYERS)
    layers, (parts, _) = list(model.get_submodule(path)), parts_of(model, path)
    return model, layers, parts, find_rules(model, layers, parts, range(LAYERS))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rule_gives_what_eager_attention_returns(family):
    model, layers, parts, rules = made(family, **FAMILIES[family])
    steps = []
    visits = keeping_visits(layers, parts, ("query", "key", PATTERN), steps)
    with visited(model, layers, parts, visits, 0), torch.no_grad():
        model(input_ids=torch.arange(TOKENS).flip(0)[None] + 1, use_cache=False)
    for at in range(LAYERS):
        query, key, own = (steps[0][name][at] for name in ("query", "key", PATTERN))
        assert own.shape == (TOKENS, tiny.HEADS, TOKENS)
        found = rules[at].probabilities(query, key)
        assert torch.allclose(found, own, atol=1e-5), float((found - own).abs().max())
        neighbours = rules[at].probabilities(query.roll(1, dims=1), key)
        assert float((neighbours - own).abs().max()) > 1e-2


def test_an_attention_that_returns_no_probabilities_has_no_rule_and_no_pattern():
    model, layers, parts, rules = made("llama", implementation="sdpa")
    assert rules == {}
    visits = keeping_visits(layers, parts, (PATTERN,), [])
    with visited(model, layers, parts, visits, 0), pytest.raises(Refused, match="no probabilities"):
        model(input_ids=torch.ones(1, 3, dtype=torch.int64), use_cache=False)


def test_an_attention_that_follows_no_rule_is_refused(tmp_path):
    *_, rules = made("falcon", alibi=True)  # which scales its ALiBi with the scores
    assert rules == {}
    save_file({"truth|p0/s0/logits": torch.zeros(2)}, tmp_path / "observations.safetensors")
    with pytest.raises(Refused, match="no rule was found"):
        read_rule(tmp_path / "observations.safetensors", 0, torch.device("cpu"))

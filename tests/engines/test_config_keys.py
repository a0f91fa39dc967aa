"""No key of a tiny model's config is untested: what bench/config_keys.py holds."""

import sys
from dataclasses import replace

import pytest

from bench import config_keys
from bench.config_keys import NOT_COMPUTED_WITH, OF_ARCHITECTURE, changes, excuse, unseen

pytestmark = pytest.mark.engine

MODELS = {model.id: model for model in config_keys.tiny_models()}


def with_keys(name, **keys):
    """A tiny model with other keys in its config."""
    model = MODELS[name]
    [source] = model.sources
    return replace(model, sources=(replace(source, config={**source.config, **keys}),))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_every_key_is_seen_or_excused(name):
    table = OF_ARCHITECTURE.get(name, {})
    assert [each.name for each in unseen(MODELS[name]) if not excuse(each, table)] == []


@pytest.mark.parametrize(
    ("name", "keys", "hidden"),
    [
        ("llama", {"rms_norm_eps": 1e-9}, "rms_norm_eps=2e-09"),
        ("gemma2", {"attn_logit_softcapping": 1e5}, "attn_logit_softcapping=None"),
        ("gemma2", {"sliding_window": 200}, "sliding_window=201"),
        ("gpt_oss", {"swiglu_limit": 500.0}, "swiglu_limit=1000.0"),
        (
            "mistral",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
            "rope_parameters.rope_theta=removed",
        ),
    ],
)
def test_a_key_that_no_prompt_reaches_is_named(name, keys, hidden):
    key = hidden.partition("=")[0]
    assert hidden in [each.name for each in unseen(with_keys(name, **keys), key)]


def test_a_window_is_tried_with_one_token_more():
    assert ("17", 17) in list(changes("sliding_window", 16, 4))


def test_what_nothing_computes_with_is_excused_by_name_and_by_value():
    def change(key, to):
        return config_keys.Change(key, to, key, None)

    assert excuse(change("id2label.0", "removed"), NOT_COMPUTED_WITH)
    assert excuse(change("head_dim", "None"), NOT_COMPUTED_WITH)
    assert not excuse(change("head_dim", "32"), NOT_COMPUTED_WITH)
    assert not excuse(change("rope_parameters.partial_rotary_factor", "1.0"), NOT_COMPUTED_WITH)


@pytest.mark.slow
def test_of_every_tiny_model_and_no_reason_is_stale(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["config_keys.py"])
    assert config_keys.main() == 0

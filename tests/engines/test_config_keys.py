"""No key of a tiny model's config is untested: what bench/config_keys.py holds."""

import sys
from dataclasses import replace

import pytest

from bench import config_keys
from bench.config_keys import Outcome, looks, refuted, unseen
from bench.config_reasons import NOT_COMPUTED_WITH, Reason

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
    found = looks(MODELS[name])
    unexcused = [each.change.name for each in found if each.hidden and not _reasons(each)]
    assert unexcused == []
    assert [each.change.name for each in found if each.refutes] == []


def _reasons(look):
    return look.own or look.general


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("phi3", "max_position_embeddings"),
        ("phi3", "sliding_window"),
        ("phi3", "rope_parameters.rope_type"),
        ("mistral", "head_dim"),
        ("llama", "num_key_value_heads"),
        ("llama", "rope_parameters.rope_type"),
    ],
)
def test_a_key_that_decides_in_one_model_is_not_excused_there_for_the_others_sake(name, key):
    found = looks(MODELS[name], key)
    assert found
    assert [each.change.name for each in found if each.hidden or _reasons(each)] == []


def test_a_key_that_another_table_would_hide_is_named_where_no_condition_of_it_holds():
    """A length that stretches positions: where no prompt is reached by it, it is untested."""
    plain = {"rope_type": "longrope", "rope_theta": 5e4, "partial_rotary_factor": 0.5}
    ones = {"short_factor": [1.0] * 16, "long_factor": [1.0] * 16}
    model = with_keys("phi3", rope_parameters={**plain, **ones, "attention_factor": 1.0})
    assert "max_position_embeddings=2048" in [
        each.name for each in unseen(model, "max_position_embeddings")
    ]


def test_a_reason_that_is_false_is_named(monkeypatch):
    false = {**NOT_COMPUTED_WITH, "rms_norm_eps": Reason("of training")}
    monkeypatch.setattr(config_keys, "NOT_COMPUTED_WITH", false)
    assert "rms_norm_eps=2e-05" in [each.name for each in refuted(MODELS["llama"], "rms_norm_eps")]


def test_what_is_refused_for_its_kind_refutes_no_reason():
    found = {each.change.name: each for each in looks(MODELS["llama"], "max_position_embeddings")}
    assert found["max_position_embeddings=None"].outcome is Outcome.REFUSED
    assert not any(each.refutes for each in found.values())


@pytest.mark.parametrize(
    ("name", "keys", "hidden"),
    [
        ("llama", {"rms_norm_eps": 1e-9}, "rms_norm_eps=2e-09"),
        ("gemma2", {"attn_logit_softcapping": 1e5}, "attn_logit_softcapping=None"),
        ("gemma2", {"sliding_window": 200}, "sliding_window=201"),  # one token more
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


@pytest.mark.slow
def test_of_every_tiny_model_and_no_reason_is_stale(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["config_keys.py"])
    assert config_keys.main() == 0

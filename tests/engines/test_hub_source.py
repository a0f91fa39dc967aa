"""`hub:` sources against a server that speaks the hub's API, on this machine alone."""

import json
from dataclasses import replace

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from conformance.engines.building.checkpoint_builder import build
from conformance.errors import ConformanceError
from conformance.spec import checkpoints
from conformance.spec.records import Model, Source
from tests.engines.local_hub import serving

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine, and nothing that was fetched before."""
    with serving() as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


@pytest.fixture
def weights(tmp_path):
    """A checkpoint in several shards with an index, and a file that no engine reads."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    folder = tmp_path / "weights"
    model.save_pretrained(folder, max_shard_size="20kB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    (folder / "pytorch_model.bin").write_bytes(b"the same again")
    return folder


def model(revision, repo="owner/tiny"):
    return Model("tiny", "llama", (Source("hub", repo=repo, revision=revision),))


def test_a_revision_is_fetched_whole_shard_by_shard_and_only_once(hub, weights, tmp_path):
    commit = hub.add("owner/tiny", weights)
    made = checkpoints.obtain(model(commit), tmp_path / "cache", build)
    assert (made.layers, made.width, made.source) == (3, 32, f"hub:owner/tiny@{commit}")
    index = json.loads((made.path / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert shards == {path.name for path in made.path.glob("*.safetensors")}
    assert not any("pytorch_model.bin" in request for request in hub.asked)
    ours, theirs = map(AutoModelForCausalLM.from_pretrained, (made.path, weights))
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    hub.asked.clear()
    assert checkpoints.obtain(model(commit), tmp_path / "cache", build) == made
    assert not hub.asked


def test_two_revisions_are_two_checkpoints(hub, weights, tmp_path):
    first = hub.add("owner/tiny", weights)
    torch.manual_seed(2)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(weights, max_shard_size="20kB")
    second = hub.add("owner/tiny", weights)
    made = [checkpoints.obtain(model(one), tmp_path / "cache", build) for one in (first, second)]
    assert made[0].digest != made[1].digest and made[0].path != made[1].path


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda hub, name: hub.gated.add(name), "restricted|gated"),
        (lambda hub, name: hub.repositories.pop(name), "Not Found"),
        (lambda hub, name: hub.repositories[name].clear(), "(?i)revision"),
    ],
)
def test_a_refusal_is_told_in_the_hubs_words(hub, weights, tmp_path, damage, said):
    commit = hub.add("owner/tiny", weights)
    damage(hub, "owner/tiny")
    with pytest.raises(ConformanceError, match=said) as refused:
        checkpoints.obtain(model(commit), tmp_path / "cache", build)
    assert f"hub:owner/tiny@{commit}" in str(refused.value)
    assert checkpoints.locate(model(commit), tmp_path / "cache") is None


def test_a_download_that_breaks_leaves_no_checkpoint_and_can_be_had_later(hub, weights, tmp_path):
    commit = hub.add("owner/tiny", weights)
    shard = max(path.name for path in weights.glob("*.safetensors"))
    hub.broken.add(shard)
    with pytest.raises(ConformanceError, match="no source of model 'tiny' works"):
        checkpoints.obtain(model(commit), tmp_path / "cache", build)
    assert checkpoints.locate(model(commit), tmp_path / "cache") is None
    hub.broken.clear()
    made = checkpoints.obtain(model(commit), tmp_path / "cache", build)
    assert (made.path / shard).read_bytes() == (weights / shard).read_bytes()


def test_without_a_network_what_was_fetched_before_is_enough(hub, weights, tmp_path, monkeypatch):
    commit = hub.add("owner/tiny", weights)
    checkpoints.obtain(model(commit), tmp_path / "first", build)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    made = checkpoints.obtain(model(commit), tmp_path / "second", build)
    assert made.layers == 3 and not hub.asked
    with pytest.raises(ConformanceError, match=r"(?i)offline|cached"):
        checkpoints.obtain(model("0" * 40), tmp_path / "second", build)
    assert not hub.asked


def test_the_next_source_is_tried_where_the_hub_refuses(hub, weights, tmp_path):
    refused = model("0" * 40).sources[0]
    both = replace(model("0"), sources=(refused, Source("path", file=str(weights))))
    made = checkpoints.obtain(both, tmp_path / "cache", build)
    assert made.source == str(weights)
    assert any("api/models/owner/tiny" in request for request in hub.asked)

"""Query, key, value and heads: found in every form that transformers' attentions have them in."""

import pytest
import torch

from conformance.engines.inside_attention import BLOCKS, GROUPS, HEADS_FIRST, VALUE_FIRST, find
from conformance.engines.model_parts import parts_of
from conformance.engines.reference.places import WITHIN, hook_within
from conformance.engines.tree import hooked, layer_path
from tests.engines import tiny

HEADS, WIDTH = tiny.HEADS, tiny.WIDTH // tiny.HEADS
#: Family → how it is arranged, how many heads of keys it has.
FAMILIES = {
    "llama": ("", 2),
    "gpt2": (BLOCKS, HEADS),
    "gpt_neox": (GROUPS, HEADS),
    "bloom": (GROUPS, HEADS),
    "falcon": (BLOCKS, 1),
    "falcon-grouped": (GROUPS, 2),
    "phi3": (BLOCKS, 2),
    "opt": ("", HEADS),
    "qwen3": ("", 2),
    "gemma3_text": (f", {HEADS_FIRST}, {VALUE_FIRST}", 2),
    "olmo2": ("", 2),
}


def made(family):
    name, _, grouped = family.partition("-")
    more = {"new_decoder_architecture": True, "num_kv_heads": 2} if grouped else {}
    return tiny.build(name, 2, rough=True, **more)


def passed(model, parts, layer):
    """What each part holds in a forward of nine tokens, [tokens, heads, width]."""
    seen = {}

    def keeping(name):
        def keep(value):
            seen[name] = parts.inside.places[name].read(value, lambda rows: rows)

        return keep

    with hooked(hook_within(parts, layer, name, keeping(name)) for name in WITHIN), torch.no_grad():
        model(input_ids=torch.arange(9)[None] + 1, use_cache=False)
    return seen


def multiplied(monkeypatch, model):
    """Every pair of tensors that a forward multiplies, in order: queries and keys first of all."""
    products = []
    real_matmul, real_baddbmm = torch.matmul, torch.Tensor.baddbmm

    def noting(a, b, *rest, **more):
        products.append((a, b))
        return real_matmul(a, b, *rest, **more)

    def noting_sum(self, batch1, batch2, **more):
        products.append((batch1, batch2))
        return real_baddbmm(self, batch1=batch1, batch2=batch2, **more)

    monkeypatch.setattr(torch, "matmul", noting)
    monkeypatch.setattr(torch.Tensor, "__matmul__", noting)
    monkeypatch.setattr(torch.Tensor, "baddbmm", noting_sum)
    with torch.no_grad():
        model(input_ids=torch.arange(9)[None] + 1, use_cache=False)
    monkeypatch.undo()
    return products


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_are_what_the_attention_multiplies(family, monkeypatch):
    model = made(family)
    arrangement, groups = FAMILIES[family]
    path = layer_path(model, 2)
    parts, arranged = parts_of(model, path)
    assert arranged == arrangement
    assert {"query", "key", "value", "heads"} == set(parts.inside.places), parts.inside.why
    layer = model.get_submodule(path)[0]
    seen = passed(model, parts, layer)
    shapes = {name: tuple(value.shape) for name, value in seen.items()}
    assert shapes["query"] == shapes["heads"] == (9, HEADS, WIDTH)
    assert shapes["key"] == shapes["value"] == (9, groups, WIDTH)
    # A first token attends to itself alone.
    repeated = seen["value"][0].repeat_interleave(HEADS // groups, dim=0)
    assert torch.allclose(seen["heads"][0], repeated, atol=1e-5)
    # Of the first position, which rotary positions leave alone, the score of query and key.
    products = multiplied(monkeypatch, model)
    score = next(a @ b for a, b in products if b.shape[-1] == 9 and a.shape[-1] == WIDTH)
    key = seen["key"][0].repeat_interleave(HEADS // groups, dim=0)
    said = (seen["query"][0] * key).sum(-1)
    ratio = score.reshape(-1, 9, 9)[:HEADS, 0, 0] / said
    assert torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-3), ratio


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_read_again_and_nothing_else_changes(family):
    model = made(family)
    path = layer_path(model, 2)
    parts, _ = parts_of(model, path)
    layer = model.get_submodule(path)[0]
    before = passed(model, parts, layer)
    for name in WITHIN:
        place = parts.inside.places[name]

        def double_head_one(value, place=place):
            rows = place.read(value, lambda rows: rows)
            rows[:, -1] *= 2
            return place.write(value, lambda rows: rows, rows)

        with hooked([hook_within(parts, layer, name, double_head_one)]):
            after = passed(model, parts, layer)
        expected = before[name].clone()
        expected[:, -1] *= 2
        assert torch.allclose(after[name], expected, atol=1e-6), name
        others = {"query", "key", "value"} - {name}
        assert all(torch.allclose(after[one], before[one], atol=1e-6) for one in others), name


def test_latent_attention_says_why_it_has_no_keys():
    layer = torch.nn.Module()
    layer.q_a_proj, layer.o_proj = torch.nn.Linear(8, 4), torch.nn.Linear(8, 8)
    found = find(layer, 2, 2)
    assert set(found.places) == {"heads"} and "no query, key and value" in found.why["qkv"]


def test_ranks_have_their_blocks_one_after_the_other_and_a_norm_of_one_rank_is_refused():
    class QKVParallelLinear(torch.nn.Module):
        input_size, output_size, total_num_kv_heads = 16, 32, 2

    attention = torch.nn.Module()
    attention.qkv_proj, attention.o_proj = QKVParallelLinear(), torch.nn.Linear(16, 16)
    places = find(attention, 4, 2, ranks=2).places
    whole = torch.arange(32.0)[None]
    # Each rank has two queries of four, one key and one value.
    assert places["query"].read(whole, lambda rows: rows)[0, 2].tolist() == [16, 17, 18, 19]
    keys = [[8, 9, 10, 11], [24, 25, 26, 27]]
    assert places["key"].read(whole, lambda rows: rows)[0].tolist() == keys
    # Four ranks have a query each, and two of them the same key.
    key = find(attention, 4, 2, ranks=4).places["key"]
    whole = torch.arange(48.0)[None]
    keys = torch.tensor([[[4.0, 5, 6, 7], [28, 29, 30, 31]]])
    assert torch.equal(key.read(whole, lambda rows: rows), keys)
    written = key.write(whole, lambda rows: rows, -keys)[0].reshape(4, 3, 4)
    assert torch.equal(written[:, 1], -keys[0].repeat_interleave(2, dim=0))
    assert torch.equal(written[:, ::2], whole.reshape(4, 3, 4)[:, ::2])
    attention.q_norm = torch.nn.LayerNorm(4)
    refused = find(attention, 4, 2, ranks=2)
    assert "a block on 2 ranks sees 2 of 4" in refused.why["qkv"] and "query" not in refused.places


def test_an_arrangement_that_nobody_measured_is_not_guessed():
    attention = torch.nn.Module()
    attention.query_key_value = torch.nn.Linear(8, 24)
    attention.dense = torch.nn.Linear(8, 8)
    assert "nobody measured" in find(attention, 2, 2).why["qkv"]

"""The parts of a model are found by structure, and their values by their form."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conformance.engines import Refused
from conformance.engines.lm import TracedModel, words
from conformance.engines.model_parts import (
    Parts,
    TracedLayer,
    TracedPart,
    arguments,
    find_parts,
    floating,
    passed_on,
    stream_before,
)
from conformance.engines.traced import Probe, TracedLayers
from conformance.engines.tree import follow, layer_path
from tests.engines import tiny

FAMILIES = ("llama", "gemma2", "gpt2", "opt", "gpt_neox", "bloom")


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_part_is_what_its_name_says(architecture: str) -> None:
    model = tiny.build(architecture)
    layers = layer_path(model, 3)
    parts = find_parts(model, layers, 40)
    embedding = model.get_input_embeddings()
    assert follow(model, parts.embedding) is embedding
    head = follow(model, parts.head)
    assert head is model.get_output_embeddings() or head.weight is embedding.weight
    last = follow(model, layers)[-1]
    order: list[str] = []
    for name, module in (
        ("norm", follow(model, parts.norm)),
        ("attention", follow(last, parts.attention)) if parts.attention else ("", None),
        ("mlp", follow(last, parts.mlp)) if parts.mlp else ("", None),
        ("last", last),
    ):
        if module is not None:
            module.register_forward_hook(lambda *_, name=name: order.append(name))
    with torch.inference_mode():
        model(torch.arange(1, 8)[None])
    assert order[-2:] == ["last", "norm"], "the norm follows the last layer"
    assert set(order) >= {"last", "norm"} | ({"attention"} if parts.attention else set())


def test_a_model_without_a_part_refuses_in_words() -> None:
    parts = Parts(embedding="wte", norm="ln_f")
    parts.require(("embedding", "norm"))
    with pytest.raises(Refused, match="the model has no part called attention or mlp"):
        parts.require(("attention", "mlp", "norm"))


def test_positions_masks_and_rotary_tables_are_not_what_a_module_works_on() -> None:
    rows = torch.randn(5, 8)
    tables = (torch.randn(5, 4), torch.randn(5, 4))
    inputs = ((torch.arange(5),), {"hidden_states": rows, "position_embeddings": tables})
    assert [id(value) for value in arguments(inputs)] == [id(rows)]
    assert next(floating((rows, None))) is rows


class _NormWithRest(torch.nn.Module):
    """vLLM's Cohere: the norm gives back a residual that it was not given."""

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, None]:
        return rows / rows.norm(dim=-1, keepdim=True), None


def test_the_lens_takes_the_rows_of_a_norm_that_returns_a_tuple() -> None:
    model = torch.nn.ModuleDict({"norm": _NormWithRest(), "head": torch.nn.Linear(8, 12)})
    parts = Parts(norm="norm", head="head", vocabulary=10)
    layers = TracedLayers(model, "", 0, "single", TracedLayer, parts)
    rows = torch.randn(3, 8)
    expected = (rows / rows.norm(dim=-1, keepdim=True)) @ model["head"].weight.T
    with torch.no_grad():
        found = TracedModel(model, layers, Probe((), ())).lens(rows)
    assert torch.allclose(found, expected[:, :10])


def test_the_stream_before_a_layer_is_one_tensor_or_the_sum_of_two() -> None:
    branch, residual = torch.randn(5, 8), torch.randn(5, 8)
    positions = torch.arange(5)
    assert torch.equal(stream_before(((positions, branch, None), {}), "dual"), branch)
    both = ((positions, branch, residual), {})
    assert torch.equal(stream_before(both, "dual"), branch + residual)
    assert torch.equal(stream_before(both, "second"), residual)
    assert torch.equal(stream_before(((branch[None],), {}), "batched"), branch)


def test_a_layer_that_is_left_out_hands_on_what_it_was_given_as_copies() -> None:
    branch, residual = torch.randn(5, 8), torch.randn(5, 8)
    first, second = passed_on(((torch.arange(5), branch, residual), {}), "dual")
    assert torch.equal(first, branch) and torch.equal(second, residual)
    assert first.data_ptr() != branch.data_ptr()
    whole, nothing = passed_on(((torch.arange(5), branch, None), {}), "dual")
    assert torch.equal(whole + nothing, branch)
    assert torch.equal(passed_on(((branch,), {}), "single"), branch)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("between"), "ValueError: between"),
        (RuntimeError("KeyError: 'gone'\n\nIntervention traceback:\n …"), "KeyError: 'gone'"),
        (RuntimeError("the engine is dead"), "RuntimeError: the engine is dead"),
        (ValueError(), "ValueError: "),
    ],
)
def test_an_error_says_its_own_type_also_from_another_process(
    error: BaseException, said: str
) -> None:
    assert words(error) == said


@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8)], ids=["rows", "batch"])
def test_what_a_module_is_given_changes_for_one_prompt_and_nobody_else(
    shape: tuple[int, ...],
) -> None:
    before = torch.randn(shape)
    positions = torch.arange(5)  # what vLLM gives its attention first
    envoy = SimpleNamespace(inputs=((positions, before, "more"), {}))
    kept = before.clone()
    TracedPart(envoy, lambda rows: rows[2:4]).input = torch.ones(8)
    (first, given, more), _ = envoy.inputs
    assert first is positions and more == "more"
    assert given.shape == shape and torch.equal(before, kept)
    assert torch.equal(given.reshape(5, 8)[2:4], torch.ones(2, 8))
    assert torch.equal(given.reshape(5, 8)[[0, 1, 4]], kept.reshape(5, 8)[[0, 1, 4]])


@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8)])
def test_what_is_assigned_to_an_output_goes_on_in_the_place_of_its_first_tensor(
    shape: tuple[int, ...],
) -> None:
    before, weights = torch.zeros(shape), torch.zeros(3, 3)
    envoy = SimpleNamespace(output=(before, weights, None))
    TracedPart(envoy, lambda rows: rows[2:4]).output = torch.ones(2, 8)
    given, other, nothing = envoy.output
    assert other is weights and nothing is None and not before.any()
    assert given.shape == shape and given.sum() == 16
    assert torch.equal(given.reshape(5, 8)[2:4], torch.ones(2, 8))


def test_what_an_engine_does_not_do_is_no_answer() -> None:
    assert TracedModel.words(ValueError("in a block")) == "ValueError: in a block"
    with pytest.raises(NotImplementedError):
        TracedModel.words(NotImplementedError("two prompts"))

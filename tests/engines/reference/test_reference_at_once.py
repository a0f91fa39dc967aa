"""A way that takes the tokens of a generation at once computes what one that takes each by itself
does, and is left where a definition makes another thing of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.engines.reference.ensemble import REFERENCE_RUN, EnsembleMember, members
from conformance.engines.reference.model import ReferenceModel
from conformance.engines.tree import hooked, layer_path
from conformance.spec.generated_tokens import in_precision
from conformance.spec.records import Precision
from tests.engines import tiny

FAMILIES = ("llama", "gpt2", "bloom", "gemma2", "mamba2", "qwen3_moe")
#: Its rotary frequencies are those of the longest sequence so far: of another for each step.
DYNAMIC = {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 10000.0}
LAYERS, STEPS, PROMPT, ALLOWED = 3, 5, "ten words or so", 1e-5
QUICK = EnsembleMember("way", torch.float32, "eager", at_once=True)
#: As the judge has it: a hundred times what other orders of addition lose (docs/numerics.md).
NEAR = 100 * 2.0**-24 * (tiny.WIDTH * LAYERS) ** 0.5


def of(
    module: Any, member: EnsembleMember, reference: ReferenceModel | None = None
) -> ReferenceModel:
    path = layer_path(module, LAYERS)
    model = ReferenceModel(
        module.to(member.dtype), tiny.tokenized, member, path, (), reference, allowed=ALLOWED
    )
    model.prompts = (PROMPT,)
    return model


def with_reference(module: Any) -> tuple[ReferenceModel, tuple[int, ...]]:
    """The reference, after its run, and the tokens of this."""
    reference = of(module, REFERENCE_RUN)
    tokens = tuple(int(token) for token in reference.run(PROMPT, steps=STEPS).tokens)
    return reference, tokens


def held(model: ReferenceModel, tokens: tuple[int, ...], steps: int = STEPS) -> Any:
    model.forced = (tokens,)
    return model.run(PROMPT, steps=steps)


def assert_near(own: torch.Tensor, other: torch.Tensor) -> None:
    """Each row, by its norm: an entry near zero is a difference of large ones, and how many of its
    digits are left depends on the processor's order of addition.
    """
    assert own.shape == other.shape
    assert ((own - other).norm(dim=-1) <= NEAR * other.norm(dim=-1)).all()


def assert_near_run(run: Any, slow: Any) -> None:
    """The logits of every step, and the streams after every layer."""
    for own, other in zip(run.logits, slow.logits, strict=True):
        assert_near(own, other)
    for own, other in zip(run.stream, slow.stream, strict=True):
        assert own.keys() == other.keys()
        for layer in own:
            assert_near(own[layer], other[layer])


def test_a_model_whose_generate_keeps_one_row_of_logits_goes_step_by_step() -> None:
    """Like Falcon-H1, whatever it is asked to keep."""
    module = tiny.build("llama")
    prepare = module.prepare_inputs_for_generation
    module.prepare_inputs_for_generation = lambda *args, **kwargs: (
        prepare(*args, **kwargs) | {"logits_to_keep": 1}
    )
    reference, tokens = with_reference(module)
    run = held(of(module, replace(QUICK, pad=3), reference), tokens)
    assert not run.at_once
    assert_near_run(run, reference.run(PROMPT, steps=STEPS))


def edited(model: ReferenceModel, tokens: tuple[int, ...], scale: float = 2.0) -> Any:
    model.forced = (tokens,)
    edits = {1: lambda stream, earlier: scale * stream + earlier[0]}
    return model.run(PROMPT, edits=edits, steps=STEPS)


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_at_once_is_one_after_the_other(architecture: str, pad: int) -> None:
    """Also two edited runs of one case: each is compared with the reference's of its number."""
    module = tiny.build(architecture)
    reference, tokens = with_reference(module)
    way = replace(QUICK, pad=pad)
    quick, slow = of(module, way, reference), of(module, replace(way, at_once=False), reference)
    run, other = held(quick, tokens), held(slow, tokens)
    assert (run.at_once, other.at_once) == (True, False)
    assert [int(token) for token in run.tokens] == list(tokens)
    assert run.ids.tolist() == other.ids.tolist()
    assert_near_run(run, other)
    for scale in (2.0, -0.5):
        reference.forced = ()
        tokens = tuple(int(token) for token in edited(reference, (), scale).tokens)
        run, other = edited(quick, tokens, scale), edited(slow, tokens, scale)
        assert (run.at_once, other.at_once) == (True, False)
        assert_near_run(run, other)


def test_an_edit_that_counts_its_steps_is_taken_one_after_the_other() -> None:
    module = tiny.build("llama")
    reference, _ = with_reference(module)
    calls: list[int] = []

    def counting(stream: torch.Tensor, _: Any) -> torch.Tensor:
        calls.append(len(calls))
        return stream * (1 + calls[-1] % STEPS)

    edits = {1: counting}
    tokens = tuple(int(t) for t in reference.run(PROMPT, edits=edits, steps=STEPS).tokens)
    calls.append(0)  # as somebody else's run would have left it
    quick = of(module, QUICK, reference)
    quick.forced = (tokens,)
    assert not quick.run(PROMPT, edits=edits, steps=STEPS).at_once


def test_what_was_tried_of_an_edited_run_says_nothing_of_the_next_case() -> None:
    reference, tokens = with_reference(tiny.build("llama"))
    unedited, edited_run = ((), tokens, 0), ((), tokens, 1)
    reference.agrees = {unedited: True, edited_run: True}
    reference.begin_case((PROMPT,))
    assert reference.agrees == {unedited: True}


def test_the_parts_of_a_prompt_are_read_in_one_run() -> None:
    module = tiny.build("llama")
    model = of(module, REFERENCE_RUN)
    forwards: list[int] = []
    with hooked([module.register_forward_hook(lambda *_: forwards.append(1))]):
        first = {name: model.run(PROMPT, parts=(name,)).parts[0][name] for name in model.readable}
    assert len(forwards) == 1
    assert len(model.readable) > 5
    for name, values in first.items():
        alone = of(module, REFERENCE_RUN)
        alone.__dict__["readable"] = ()
        assert str(values) == str(alone.run(PROMPT, parts=(name,)).parts[0][name])
    model.forget_parts()
    model.run(PROMPT, parts=(model.readable[0],))
    assert len(model.run(PROMPT).parts) == 1


def test_a_definition_that_looks_at_the_length_is_taken_one_after_the_other() -> None:
    short = {"max_position_embeddings": len(PROMPT) + 1}
    module = tiny.build("llama", rope_parameters=DYNAMIC, **short)
    reference, tokens = with_reference(module)
    for dtype in (torch.float32, torch.bfloat16):
        assert not held(of(module, replace(QUICK, dtype=dtype), reference), tokens).at_once


def test_a_bf16_way_waits_for_a_float32_one() -> None:
    module = tiny.build("llama")
    reference, tokens = with_reference(module)
    rounded = replace(QUICK, dtype=torch.bfloat16)
    assert not held(of(tiny.build("llama"), rounded, reference), tokens).at_once
    assert held(of(module, QUICK, reference), tokens).at_once
    assert held(of(tiny.build("llama"), rounded, reference), tokens).at_once


def test_what_is_not_known_or_changed_and_a_prompt_alone_are_computed_by_themselves() -> None:
    """Edited runs begin with the bits of a prompt alone."""
    module = tiny.build("llama")
    reference, tokens = with_reference(module)
    model = of(module, QUICK, reference)
    assert not held(model, ()).at_once
    assert not held(model, tokens[:1]).at_once
    model.forced = (tokens,)
    changed = model.run(PROMPT, steps=STEPS, edits={1: lambda stream, _: stream * 2})
    assert not changed.at_once
    model = of(module, QUICK, reference)
    assert held(model, tokens).at_once
    assert not held(model, tokens, steps=1).at_once
    assert held(model, tokens, steps=2).at_once


def test_in_each_precision_one_way_takes_each_step_by_itself() -> None:
    """As engines do: a floor of prompts alone would not be that of a generation. And float32 ways
    come before those that wait for them.
    """
    for sdpa in (True, False):
        for precision in Precision:
            ways = [way for way in members(sdpa=sdpa) if in_precision(way.name, precision)]
            assert {way.at_once for way in ways} == {True, False}
        waiting = [way.dtype for way in members(sdpa=sdpa) if way.at_once]
        assert waiting == sorted(waiting, key=lambda dtype: dtype is torch.bfloat16)

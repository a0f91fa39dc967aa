"""Errors at two stages are those at one, arrive within seconds, and leave the engine sound."""

import time

import pytest
from relay_compare import assert_clean, differences, error_of, same_on
from relay_lab import Lab, Spec

from tests.patience import PATIENCE

pytestmark = pytest.mark.engine

ONE, TWO = Spec("llama-4", 1), Spec("llama-4", 2)


@pytest.mark.parametrize(
    "program",
    [
        ("out_of_order", 3, 0),
        ("out_of_order", 1, 0),
        ("raises", "before"),
        ("raises", "between"),
        ("raises", "after"),
        ("raises_in_one",),
        ("wrong_shape",),
        ("unknown_module",),
    ],
    ids=lambda program: "-".join(map(str, program)),
)
def test_the_same_error_and_the_next_trace_is_right(lab: Lab, program):
    one, two = lab.engine(ONE), lab.engine(TWO)
    started = time.monotonic()
    got = error_of(two, *program)
    assert time.monotonic() - started < PATIENCE / 3
    expected = error_of(one, *program)
    assert (got.kind, got.text.splitlines()[0]) == (expected.kind, expected.text.splitlines()[0])
    assert_clean(two)
    same_on(one, two, "cross_write")


def test_what_was_saved_before_an_error_comes_home(lab: Lab):
    one, two = lab.engine(ONE), lab.engine(TWO)
    assert differences(one.run("saved_before_error"), two.run("saved_before_error")) == []


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_write_that_differs_between_stages_is_noticed(lab: Lab, layer, steps):
    error = error_of(lab.engine(TWO), "writes_process_id", layer, steps)
    assert "StageDivergenceError" in error.text
    assert f"layers.{layer}.output" in error.text
    same_on(lab.engine(ONE), lab.engine(TWO), "cross_write")


def test_control_flow_that_differs_between_stages_is_noticed(lab: Lab):
    error = error_of(lab.engine(TWO), "reads_on_one_stage_only")
    assert "StageDivergenceError" in error.text
    assert "did not ask for it" in error.text


@pytest.mark.parametrize("layer", [0, 3])
def test_random_numbers_agree_between_stages(lab: Lab, layer):
    # Were they not, the digests of the written values would differ, and this would raise.
    assert lab.engine(TWO).run("noisy", layer)


def test_workers_do_not_disturb_the_sampler(lab: Lab):
    one, two = lab.engine(ONE), lab.engine(TWO)
    assert differences(one.run("sampled"), two.run("sampled", draw=True)) == []


def test_an_aborted_request_leaves_nothing(lab: Lab):
    assert not any(lab.engine(TWO).run("abort_noticed"))
    assert_clean(lab.engine(TWO))


@pytest.mark.parametrize("layer", [1, 3])
@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_forward_that_raises_does_not_hang(lab: Lab, layer, stages):
    spec = Spec("llama-4" if stages == 2 else "llama-6", stages, 1, (("max_model_len", 96),))
    try:
        error = error_of(lab.engine(spec), "forward_raises", layer)
        assert "has to cover every row" in error.text
    finally:
        lab.drop(spec, broken=True)


def test_attention_of_another_stage_cannot_be_called(lab: Lab):
    two = lab.engine(TWO)
    error = error_of(two, "called_with_cache")
    assert "RemoteCallError: 'model.model.layers.0.self_attn.attn' lives on another" in error.text
    assert_clean(two)
    same_on(lab.engine(ONE), two, "called_each_step")

"""What a trace saves at two stages is what it saves at one, bit by bit."""

import pytest
from relay_compare import assert_clean, same_on
from relay_lab import Lab, Spec

ONE, TWO = Spec("llama-4", 1), Spec("llama-4", 2)

PROGRAMS = [
    ("clean",),
    ("untraced",),
    ("read_all",),
    ("containers",),
    ("named_tuple",),
    ("sub_modules",),
    ("rotary", 1),
    ("rotary", 3),
    ("tuple_of_remote",),
    ("cross_consume",),
    ("cross_write",),
    ("write_both_sides",),
    ("in_place",),
    ("inputs_written",),
    ("ablation", 0),
    ("ablation", 3),
    ("steering", 1),
    ("steering", 2),
    ("skip", 1),
    ("skip", 3),
    ("forward_per_step",),
    ("backward_between_steps",),
    ("samples_forced",),
    ("samples_read_then_written",),
    ("rows_carried",),
    ("relaxed_steps",),
    ("some_steps",),
    ("open_loop",),
    ("invokes",),
    ("wave",),
    ("cached",),
    ("cached", 3, True),
    ("stopped",),
    ("result",),
    ("several_samples",),
    ("registered",),
    ("registered_each_step",),
    ("two_traces",),
    ("carried",),
    ("norm_applied",),
    ("remote_weight_written",),
    ("called_ahead",),
    ("called_behind",),
    ("called_each_step",),
    ("source", 0),
    ("source", 3),
    ("source_written", 0),
    ("source_written", 3),
]

SPLITS = [
    (Spec("llama-7", 1), Spec("llama-7", 3)),
    (Spec("llama-6", 1), Spec("llama-6", 3)),
    (Spec("llama-4", 1, 2), Spec("llama-4", 2, 2)),
]


def settings(**kwargs):
    return tuple(sorted(kwargs.items()))


@pytest.mark.engine
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: "-".join(map(str, p)))
def test_two_stages_are_one(lab: Lab, program):
    same_on(lab.engine(ONE), lab.engine(TWO), *program)


@pytest.mark.engine
@pytest.mark.parametrize("spec", [ONE, TWO], ids=["one", "two"])
def test_generating_without_a_block_leaves_no_scope_open(lab: Lab, spec):
    """Else the ids of saved objects outlive their trace, and others come home in their place."""
    assert lab.engine(spec).run("open_scopes") == (0, 0)


@pytest.mark.engine
def test_requests_without_a_block_exchange_nothing(lab: Lab):
    engine = lab.engine(TWO)
    before = engine.run("state")
    engine.run("untraced")
    assert [r["bytes"] for r in engine.run("state")] == [r["bytes"] for r in before]
    engine.run("clean")
    assert all(a["bytes"] > b["bytes"] for a, b in zip(engine.run("state"), before, strict=True))


@pytest.mark.engine
def test_the_engine_says_what_it_is(lab: Lab):
    ranks = lab.engine(TWO).run("identity")
    assert [r["served"] for r in ranks] == ["relay", "relay"]
    assert [r["layers"] for r in ranks] == [[0, 2], [2, 4]]
    assert lab.engine(ONE).run("identity")[0]["served"] == "none"


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS, ids=lambda s: "-".join(map(str, s[1][:3])))
def test_other_splits(lab: Lab, split):
    for program in PROGRAMS:
        same_on(lab.engine(split[0]), lab.engine(split[1]), *program)
    for spec in split:
        lab.drop(spec)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "programs"),
    [
        (
            settings(max_num_batched_tokens=64, max_model_len=64),
            [("wave", 8, 6), ("wave", 6, 4), ("invokes",), ("registered",), ("wave", 8, 9)],
        ),
        (settings(num_gpu_blocks_override=6, block_size=32), [("preempted",), ("preempted",)]),
        (
            settings(enable_prefix_caching=True, block_size=32),
            [("wave", 8, 6), ("backward_between_steps",), ("read_all",), ("read_all",)],
        ),
    ],
    ids=["two batches in flight", "preemption", "prefix caching"],
)
def test_schedules(lab: Lab, changed, programs):
    one, two = (Spec("llama-4", pipeline, 1, changed) for pipeline in (1, 2))
    for program in programs:
        same_on(lab.engine(one), lab.engine(two), *program)
    lab.drop(one)
    lab.drop(two)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "programs"),
    [
        ("gpt2-5", [("gpt_read_write",)]),
        ("tied-5", [("read_all",), ("norm_applied",), ("backward_between_steps",)]),
    ],
)
def test_models(lab: Lab, model, programs):
    one, two = Spec(model, 1), Spec(model, 2)
    for program in programs:
        same_on(lab.engine(one), lab.engine(two), *program)
    assert_clean(lab.engine(two))
    lab.drop(one)
    lab.drop(two)

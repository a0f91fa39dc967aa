"""What a trace saves at two stages is what it saves at one, bit by bit."""

import pytest
from relay_compare import same_on
from relay_lab import Lab, Spec

pytestmark = pytest.mark.engine

ONE, TWO = Spec("llama-4", 1), Spec("llama-4", 2)

PROGRAMS = [
    ("clean",),
    ("untraced",),
    ("read_all",),
    ("containers",),
    ("sub_modules",),
    ("rotary", 1),
    ("rotary", 3),
    ("tuple_of_remote",),
    ("cross_write",),
    ("in_place",),
    ("inputs_written",),
    ("skip", 1),
    ("skip", 3),
    ("backward_between_steps",),
    ("samples_forced",),
    ("rows_carried",),
    ("steps", slice(2, 5), True),
    ("steps", [0, 2, 5]),
    ("steps", slice(None)),
    ("wave",),
    ("cached",),
    ("cached", 3, True),
    ("stopped",),
    ("several_samples",),
    ("registered",),
    ("carried",),
    ("norm_applied",),
    ("called_each_step",),
    ("source", 0),
    ("source", 3),
    ("source", 0, 2.0),
    ("source", 3, 2.0),
]

SPLITS = [
    (Spec("llama-7", 1), Spec("llama-7", 3)),
    (Spec("llama-6", 1), Spec("llama-6", 3)),
    (Spec("llama-4", 1, 2), Spec("llama-4", 2, 2)),
]

BATCHES = [("wave", 8, 6), ("wave", 6, 4), ("registered",), ("wave", 8, 9)]
PREFIX = [("wave", 8, 6), ("backward_between_steps",), ("read_all",), ("read_all",)]
TIED = [("read_all",), ("norm_applied",), ("backward_between_steps",)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: "-".join(map(str, p)))
def test_two_stages_are_one(lab: Lab, program):
    same_on(lab.engine(ONE), lab.engine(TWO), *program)


@pytest.mark.parametrize("spec", [ONE, TWO], ids=["one", "two"])
def test_generating_without_a_block_leaves_no_scope_open(lab: Lab, spec):
    """Else the ids of saved objects outlive their trace, and others come home in their place."""
    assert lab.engine(spec).run("open_scopes") == (0, 0)


def test_requests_without_a_block_exchange_nothing(lab: Lab):
    engine = lab.engine(TWO)
    assert engine.run("bytes_of_untraced") == 0
    before = engine.run("state")
    engine.run("clean")
    assert all(a["bytes"] > b["bytes"] for a, b in zip(engine.run("state"), before, strict=True))


def test_the_engine_says_what_it_is(lab: Lab):
    ranks = lab.engine(TWO).run("rpc", "conformance_identity")
    assert [r["served"] for r in ranks] == ["relay", "relay"]
    assert [r["layers"] for r in ranks] == [[0, 2], [2, 4]]
    assert lab.engine(ONE).run("rpc", "conformance_identity")[0]["served"] == "none"


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS, ids=lambda s: "-".join(map(str, s[1][:3])))
def test_other_splits(lab: Lab, split):
    for program in PROGRAMS:
        same_on(lab.engine(split[0]), lab.engine(split[1]), *program)
    for spec in split:
        lab.drop(spec)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "settings", "programs"),
    [
        ("llama-4", {"max_model_len": 64, "max_num_batched_tokens": 64}, BATCHES),
        ("llama-4", {"block_size": 32, "num_gpu_blocks_override": 6}, [("preempted",)] * 2),
        ("llama-4", {"block_size": 32, "enable_prefix_caching": True}, PREFIX),
        ("gpt2-5", {}, [("gpt_read_write",)]),
        ("tied-5", {}, TIED),
    ],
    ids=["two batches in flight", "preemption", "prefix caching", "gpt2", "tied"],
)
def test_other_schedules_and_models(lab: Lab, model, settings, programs):
    one, two = (Spec(model, pipeline, 1, tuple(settings.items())) for pipeline in (1, 2))
    for program in programs:
        same_on(lab.engine(one), lab.engine(two), *program)
    lab.drop(one)
    lab.drop(two)

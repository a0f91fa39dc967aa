"""A write that is made in some steps only: the line that says in which."""

import pytest

from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source, steps
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting

WRITE = "model.model.layers[2].output[0][:] += 4"

GENERATION = """\
def hf(model):
    with model.generate("x", max_new_tokens=3) as tracer:
        for step in tracer.iter[:3]:
            {theirs}


def vllm(model):
    with model.trace("x", temperature=0.0, max_tokens=3) as tracer:
        for step in tracer.iter[:3]:
            {ours}
"""
THEIRS = "model.model.layers[2].output[:] += 4"


def edit(folder, ours, theirs, part):
    path = folder / "generation.py"
    path.write_text(GENERATION.format(ours=ours, theirs=theirs))
    return write_edit(Places(source.read(path), "vllm"), part)


def parted(step, kind):
    return Parting(2, step, 0, (0,), 1, kind)


@pytest.mark.parametrize("kind", ["dropped", "partial"])
@pytest.mark.parametrize(
    ("ours", "step", "line"),
    [
        (f"if step == 0:\n                {WRITE}", 1, 10),
        (f"if step < 1 or step in (5, 6):\n                {WRITE}", 1, 10),
        (f"if step > 0:\n                continue\n            {WRITE}", 1, 10),
        (f"if step:\n                pass\n            else:\n                {WRITE}", 1, 10),
        (f"if not step:\n                for _ in (0,):\n                    {WRITE}", 2, 10),
        # What is no matter of steps, or holds in this one, is not to blame.
        (f"if step >= 0:\n                {WRITE}", 1, 11),
        (f"if model is not None:\n                {WRITE}", 1, 11),
    ],
)
def test_a_write_that_is_kept_from_a_step_is_mended_where_it_is(tmp_path, kind, ours, step, line):
    assert edit(tmp_path, ours, THEIRS, parted(step, kind)).line == line


def test_a_loop_over_other_steps_is_one(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(
        GENERATION.format(ours=WRITE, theirs=THEIRS).replace("iter[:3]", "iter[0]"),
    )
    places = Places(source.read(path), "vllm")
    assert write_edit(places, parted(1, "dropped")).line == 9
    assert steps.guard(places.scopes.roots, places.writes()[0].statement, 0) is None


def test_the_test_of_the_other_side_is_taken_over(tmp_path):
    first = f"if step == 0:\n                {THEIRS}"
    found = edit(tmp_path, f"if step <= 1:\n                {WRITE}", first, parted(1, "elsewhere"))
    assert (found.line, found.after.strip()) == (11, "if step == 0:")
    found = edit(tmp_path, WRITE, first, parted(1, "elsewhere"))
    assert found.line == 11
    assert [line.strip() for line in found.after.splitlines()] == ["if step == 0:", WRITE]
    assert "its line 4 keeps the write from it" in found.why


def test_no_test_is_worked_out_that_calls_anything(tmp_path):
    ours = f"if step == len('a' * 10 ** 9):\n                {WRITE}"
    assert edit(tmp_path, ours, THEIRS, parted(1, "dropped")).line == 11


IN_THE_LOOP = """\
def hf(model):
    with model.generate("x", max_new_tokens=3) as tracer:
        for step in tracer.iter[:3]:
            model.model.layers[2].output[:] += 4


def vllm(model):
    with model.trace("x", temperature=0.0, max_tokens=3) as tracer:
        {before}
        {loop}
            tokens = model.samples.clone()
"""


@pytest.mark.parametrize("loop", ["for step in tracer.iter[:3]:", "with tracer.all():"])
@pytest.mark.parametrize("kind", ["dropped", "partial"])
def test_a_write_before_the_loop_is_put_into_it(tmp_path, kind, loop):
    path = tmp_path / "before.py"
    path.write_text(IN_THE_LOOP.format(before=WRITE, loop=loop))
    places = Places(source.read(path), "vllm")
    found = write_edit(places, parted(1, kind))
    assert found.line == 9
    assert found.after == f"        {loop}\n            {WRITE}"
    assert "in step 0 alone" in found.why
    # In the first step it stands where it should.
    assert "step 0 alone" not in write_edit(places, parted(0, kind)).why


def test_a_write_within_a_loop_is_not_before_it(tmp_path):
    path = tmp_path / "within.py"
    inside = f"with tracer.all():\n            {WRITE}"
    path.write_text(IN_THE_LOOP.format(before=inside, loop="for step in tracer.iter[:3]:"))
    places = Places(source.read(path), "vllm")
    assert "step 0 alone" not in write_edit(places, parted(1, "dropped")).why

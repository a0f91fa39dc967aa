"""In which of a function's traces a sequence was run, told by the text."""

from dataclasses import replace

import pytest

from conformance.check.advice.writes.causes import ordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.check.values.identify import Held

LOOP = """\
CLEAN, OTHER, TIMES = "a", "b", int("3")


def {name}(model):
    with model.trace(CLEAN):
        donor = model.model.layers[1].mlp.output[{first}].save()
    for n in range(TIMES):
        with model.trace(OTHER):
            model.model.layers[1].mlp.output[{inside}] = donor
    with model.generate("c") as tracer:
        for _ in tracer.iter[:2]:
            model.model.layers[1].mlp.output[{after}] = donor
            logits = model.lm_head.output.save()
    return {{"logits": logits}}


"""

HF = LOOP.format(name="hf", first=":, -1", inside=":, -1", after=":, 0")
VLLM = LOOP.format(name="vllm", first="-1", inside="-1", after="-1")

#: The lines on which the traces of `vllm` begin, and those of the two writes of `vllm`.
FIRST, INSIDE, LAST, WRITES = 21, 24, 26, (25, 28)


def places(folder, text):
    path = folder / "loop.py"
    path.write_text(text)
    return Places(source.read(path), "vllm")


@pytest.mark.parametrize(
    ("number", "total", "line"),
    [(0, 5, FIRST), (1, 5, INSIDE), (3, 5, INSIDE), (4, 5, LAST), (1, 2, LAST), (0, 1, None)],
)
def test_a_loop_s_runs_lie_between_those_that_are_counted_from_both_ends(
    tmp_path, number, total, line
):
    found = places(tmp_path, HF + VLLM).trace_of(number, total)
    assert (found and found.lineno) == line


@pytest.mark.parametrize(
    ("prompts", "line"),
    [
        ("range(3)", INSIDE),
        ("['x', 'y', 'z']", INSIDE),
        ("zip(['x', 'y', 'z'], range(3))", INSIDE),
        ("range(2)", None),  # that would be four prompts, and five were run
        ("(1, 2, 3) if CLEAN else ()", INSIDE),
    ],
)
def test_a_loop_of_a_known_length_is_counted(tmp_path, prompts, line):
    port = places(tmp_path, HF + VLLM.replace("range(TIMES)", prompts))
    found = [port.trace_of(number, 5) for number in range(5)]
    expected = [FIRST, line, line, line, LAST] if line else [None] * 5
    assert [one and one.lineno for one in found] == expected


@pytest.mark.parametrize(
    ("given", "first"),
    [("'b'", 1), ("['b', 'c']", 2), ("[1, 2, 3]", 1), ("[[1, 2], [3]]", 2)],
)
def test_a_list_is_several_prompts_and_the_ids_of_one_are_one(tmp_path, given, first):
    text = HF + VLLM.replace("trace(CLEAN)", f"trace({given})").replace("range(TIMES)", "range(1)")
    port, total = places(tmp_path, text), first + 2
    found = [port.trace_of(number, total).lineno for number in range(total)]
    assert found == [FIRST] * first + [INSIDE, LAST]


@pytest.mark.parametrize(
    "old_and_new",
    [
        ("model.trace(OTHER)", "model.trace([OTHER, OTHER])"),
        ("    for n", "    helped(model)\n    for n"),
    ],
)
def test_what_takes_a_batch_or_is_opened_elsewhere(tmp_path, old_and_new):
    helper = "def helped(model):\n    with model.trace('h'):\n        pass\n\n\n"
    text = helper + HF + VLLM.replace(*old_and_new)
    told = places(tmp_path, text).trace_of(1, 6)
    assert (told is None) == ("helped" in old_and_new[1])


def test_two_loops_are_not_told_apart(tmp_path):
    both = VLLM.replace(
        '    with model.generate("c")', '    for n in range(TIMES):\n     with model.generate("c")'
    )
    found = places(tmp_path, HF + both)
    assert found.trace_of(0, 6).lineno == FIRST and found.trace_of(4, 6) is None


@pytest.mark.parametrize(("own", "line"), [(2, WRITES[0]), (4, WRITES[1])])
def test_the_write_of_the_run_that_differs_is_named_with_it(tmp_path, own, line):
    port = places(tmp_path, HF + VLLM)
    part = Parting(1, 0, 3, (3,), 4, own=own, ran=5)
    [write] = ordered(part, port, [], dual=True)
    trace = INSIDE if line == WRITES[0] else LAST
    assert write.edit.line == line
    assert f"in prompt 3, the trace of line {trace}" in write.words


def test_writes_of_as_many_are_paired_as_they_stand(tmp_path):
    """The loop's beside the loop's, and the generation's index is that of `hf`."""
    port = places(tmp_path, HF + VLLM)
    [write] = ordered(Parting(1, 0, 1, (3,), 4, own=1, ran=5), port, [], dual=True)
    assert "it reads as line 9 of `hf`" in write.words and not write.edit.after
    [write] = ordered(Parting(1, 0, 4, (3,), 4, own=4, ran=5), port, [], dual=True)
    assert write.edit.after.strip() == "model.model.layers[1].mlp.output[0] = donor"
    assert "line 12" in write.words


OWN_RUN = """\
def {name}(model):
    with model.trace("a"):
        {first}
        x = model.lm_head.output.save()
    with model.trace("b"):
        {second}
        y = model.lm_head.output.save()
    for n in range(TIMES):
        with model.trace("a"):
            model.model.layers[1].mlp.output[{at}] = donor
            z = model.lm_head.output.save()
    return {{"x": x, "y": y, "z": z}}


"""


def read_in(first, second):
    def read(at):
        return f"donor = model.model.layers[1].mlp.output[{at}].clone().save()"

    def half(name, at, number):
        lines = {"first": "pass", "second": "pass", number: read(at)}
        return OWN_RUN.format(name=name, at=at, **lines)

    return half("hf", ":, -1", second) + half("vllm", "-1", first)


@pytest.mark.parametrize("own", [2, 3])
def test_what_is_read_in_a_run_of_the_same_text_is_told_where_it_is_read(tmp_path, own):
    due = Held("mlp", "the MLP output of layer 1", 1, "the last token", sequence=1)
    part = Parting(1, 0, own, (3,), 4, "dropped", own=own, ran=4, alike=(0, 2, 3), due=due)
    first, write = ordered(part, places(tmp_path, read_in("first", "second")), [], dual=True)
    assert first.words == (
        "line 17 reads what line 24 writes in the trace of line 16, a run of the same text: "
        "nothing changes by it. Line 6 of `hf` reads it in the trace of line 5"
    )
    assert (first.edit.line, write.edit.line) == (17, 24)
    assert write.words.startswith("so the layers differ")
    for other in (replace(part, due=None), replace(part, alike=(2, 3))):
        [write] = ordered(other, places(tmp_path, read_in("first", "second")), [], dual=True)
        assert write.edit.line == 24
    # It is read where it should be: nothing is known of why it has no effect.
    [write] = ordered(part, places(tmp_path, read_in("second", "second")), [], dual=True)
    assert write.words.startswith("the layers differ")


def test_a_single_trace_is_not_named(tmp_path):
    text = "".join(
        f'def {name}(model):\n    with model.trace("a"):\n'
        f"        model.model.layers[1].mlp.output[{index}] *= 2\n"
        "        x = model.lm_head.output.save()\n    return {'x': x}\n\n\n"
        for name, index in (("hf", ":, -1"), ("vllm", "-1"))
    )
    [write] = ordered(
        Parting(1, 0, 0, (3,), 4, own=0, ran=1), places(tmp_path, text), [], dual=True
    )
    assert "prompt" not in write.words

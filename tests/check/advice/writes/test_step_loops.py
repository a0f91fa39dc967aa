"""Writes in a generation: above the loop over its steps, in it, and once for each half."""

import pytest

from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting

FILE = """\
STEPS = 3


def hf(model):
    with model.generate("a", max_new_tokens=STEPS, do_sample=False) as tracer:
        logits = [].save()
        for _ in tracer.iter[:STEPS]:
            hidden = model.model.layers[1].output
            hidden[:] += 2.0
            logits.append(model.lm_head.output[:, -1].clone())
    return {"logits": logits}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=STEPS) as tracer:
        logits = [].save()
        for _ in tracer.iter[:STEPS]:
            hidden = model.model.layers[1].output[0]
            hidden[:] += 2.0
            logits.append(model.logits.clone())
    return {"logits": logits}
"""

LOOP = "        for _ in tracer.iter[:STEPS]:\n"
READ = "hidden = model.model.layers[1].output[0]\n"
WRITE = "hidden[:] += 2.0\n"
RIGHT = FILE.index(LOOP + "            " + READ)


def with_lines(above, inside):
    """The file with these lines above the loop of `vllm`, and these in it."""
    body = FILE[FILE.rindex("            logits.append") :]
    lines = [*(f"        {one}" for one in above), LOOP, *(f"            {one}" for one in inside)]
    return FILE[:RIGHT] + "".join(lines) + body


def mended(tmp_path, text, kind="dropped", step=1, **more):
    path = tmp_path / "mine.py"
    path.write_text(text)
    places = Places(source.read(path), "vllm", dual=True)
    part = Parting(1, step, 0, (3,), 4, kind, own=0, ran=1, **more)
    return write_edit(places, part)


def applied(text, edit):
    lines = text.splitlines()
    first = edit.line - 1
    last = first + len(edit.before.splitlines())
    assert lines[first:last] == edit.before.splitlines()
    return "\n".join([*lines[:first], *edit.after.splitlines(), *lines[last:]]) + "\n"


@pytest.mark.parametrize(
    ("above", "inside", "why"),
    [
        ((READ, WRITE), (), "stands in no loop over the steps"),
        ((READ,), (WRITE,), "is read above the loop over the steps, in step 0 alone"),
        ((WRITE.replace("hidden", "model.model.layers[1].output[0]"),), (), "stands in no loop"),
    ],
)
def test_what_stands_above_the_loop_over_the_steps_goes_into_it(tmp_path, above, inside, why):
    text = with_lines(above, inside)
    edit = mended(tmp_path, text)
    assert why in edit.why
    assert applied(text, edit) == with_lines((), (*above, *inside))


def test_lines_that_others_stand_between_are_shown_and_not_moved(tmp_path):
    edit = mended(tmp_path, with_lines((READ, "norm = hidden.norm()\n", WRITE), ()))
    assert edit.line == 19 and edit.after == "" and "no loop over the steps" in edit.why


def test_a_write_in_the_loop_stays_there(tmp_path):
    edit = mended(tmp_path, FILE)
    assert edit.line == 19 and "above the loop" not in edit.why


def test_a_loop_over_both_halves_writes_twice(tmp_path):
    both = with_lines((), ("for hidden in model.model.layers[1].output:\n", f"    {WRITE}"))
    edit = mended(tmp_path, both, "twice", 0)
    assert edit.after.strip() == "for hidden in model.model.layers[1].output[:1]:"
    assert "added to the stream" in edit.why


def test_a_live_value_is_no_copy(tmp_path):
    edit = mended(
        tmp_path,
        FILE.replace(f"{READ}            hidden[:]", f"{READ}            hidden[-1]"),
        step=0,
    )
    assert "copied first" not in edit.why and "`hidden[:] += 2.0`, line 9" in edit.why
    copied = FILE.replace(READ, READ.replace("output[0]", "output[0] + 0"))
    assert "copied first" in mended(tmp_path, copied, step=0).why


def test_a_write_that_is_the_same_is_told_by_what_it_writes(tmp_path):
    edit = mended(tmp_path, FILE, "scaled", 0)
    assert (
        edit.why == "it writes the same as line 9 of `hf`: the value that it writes is another one"
    )

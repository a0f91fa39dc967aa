"""A statement that changes the model's own memory where `hf` writes nothing: named, and made a new
value.
"""

import pytest

from conformance.check.advice.edits import suspect
from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting

NOTHING = Parting(1, 0, 0, (0, 1), 2, kind="elsewhere", words="on transformers nothing is written")


def places(folder, *ours, theirs="x = model.model.layers[1].output * 2"):
    text = ""
    for name, lines in (("hf", (theirs,)), ("vllm", ours)):
        body = "".join(f"        {line}\n" for line in lines)
        text += f"def {name}(model):\n    with model.trace('a'):\n{body}    return {{'x': x}}\n\n\n"
    path = folder / "port.py"
    path.write_text(text)
    return Places(source.read(path), "vllm")


LAYER, OUT = "layer = model.model.layers[1]", "layer.output"


@pytest.mark.parametrize(
    ("read", "line", "after"),
    [
        (f"x = {OUT}[0]", f"x += {OUT}[1]", [f"x = x + {OUT}[1]"]),
        (f"x = {OUT}[0]", f"x -= {OUT}[1] * 2", [f"x = x - ({OUT}[1] * 2)"]),
        (f"x = {OUT}[0]", f"x.add_({OUT}[1])", [f"x = x.add({OUT}[1])"]),
        (f"x = {OUT}[0].view(-1, 8)", "x.mul_(2)", ["x = x.mul(2)"]),
        (f"h = {OUT}[0]", f"x = h.add_({OUT}[1])", [f"x = h.add({OUT}[1])"]),
        (f"h = {OUT}[0]", f"x = {OUT}[0].add_({OUT}[1])", [f"x = {OUT}[0].add({OUT}[1])"]),
        (f"x = {OUT}[0].float()", "x *= 2", ["x = x * 2"]),
        (f"x = {OUT}[0]", "x[-1] = 0", ["x = x.clone()", "x[-1] = 0"]),
        (f"x = {OUT}[0]", "x[-1] *= 2", ["x = x.clone()", "x[-1] *= 2"]),
        (f"x = {OUT}[0]", "x[-1].zero_()", ["x = x.clone()", "x[-1].zero_()"]),
        (f"x = {OUT}", "x[0][-1] = 0", []),
    ],
)
def test_a_statement_that_writes_where_hf_does_not_is_made_a_new_value(tmp_path, read, line, after):
    made = places(tmp_path, LAYER, read, line)
    edit = write_edit(made, NOTHING)
    assert made.file.line(edit.line).strip() == line
    assert [one.strip() for one in edit.after.splitlines()] == after
    assert " writes into " in edit.why and "the model goes on with" in edit.why


@pytest.mark.parametrize("read", [f"x = {OUT}[0] + {OUT}[1]", f"x = {OUT}[0].clone()"])
@pytest.mark.parametrize("line", ["x += 1", "y = x.add_(1)"])
def test_what_is_done_to_a_value_of_one_s_own_is_no_write(tmp_path, read, line):
    assert places(tmp_path, LAYER, read, line).writes() == []


def test_where_hf_writes_too_no_new_value_is_advised(tmp_path):
    theirs = "model.model.layers[2].output[:] *= 2"
    made = places(tmp_path, LAYER, f"x = {OUT}[0]", "x *= 2", theirs=theirs)
    edit = write_edit(made, NOTHING)
    assert edit.after == "" and "make a new value" not in edit.why


def test_a_name_that_is_changed_beside_the_write_of_hf_is_made_a_new_value(tmp_path):
    theirs = "model.model.layers[0].output[:] *= 2"
    own = ["h = model.model.layers[0].output[0]", "h[:] *= 2", f"x = {OUT}[0]", f"x += {OUT}[1]"]
    made = places(tmp_path, own[0], own[1], LAYER, *own[2:], theirs=theirs)
    edit = write_edit(made, NOTHING)
    assert (made.file.line(edit.line).strip(), edit.after.strip()) == (
        own[3], f"x = x + {OUT}[1]",
    )  # fmt: skip
    # Of two it is not known which one is too many.
    twice = places(tmp_path, *own[:2], LAYER, *own[2:], "x *= 2", theirs=theirs)
    assert "make a new value" not in write_edit(twice, NOTHING).why


@pytest.mark.parametrize(
    "lines",
    [
        (f"x = {OUT}[0]", f"x += {OUT}[1]"),
        (f"x = {OUT}[0]", f"x = x + {OUT}[1]"),
        (f"a = {OUT}[0]", f"b = {OUT}[1]", "x = a + b"),
        (f"x = {OUT}[0] + {OUT}[1]", f"x = x + {OUT}[1]"),
    ],
)
def test_two_halves_that_come_together_are_no_half(tmp_path, lines):
    assert suspect(places(tmp_path, LAYER, *lines), "x") is None


@pytest.mark.parametrize(
    "lines",
    [
        (f"a = {OUT}[0]", "x = a * 2"),
        (f"a = {OUT}[0]", f"b = {OUT}[0] + {OUT}[1]", "x = a - b"),
    ],
)
def test_a_half_beside_a_whole_is_one(tmp_path, lines):
    made = places(tmp_path, LAYER, *lines)
    assert suspect(made, "x").after.strip() == f"a = ({OUT}[0] + {OUT}[1])"

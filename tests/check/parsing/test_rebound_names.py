"""A name that is bound several times has the value of the nearest line above; one that is made of
other names has what of the model is in those.
"""

import pytest

from conformance.check.advice.edits import read_edit, suspect
from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.check.values.identify import Held


def places(folder, *lines, returned='{"x": x}'):
    path = folder / "rebound.py"
    body = "".join(f"        {line}\n" for line in lines)
    path.write_text(
        "def hf(model):\n    return {}\n\n\n"
        f'def vllm(model):\n    with model.trace("a"):\n{body}    return {returned}\n'
    )
    return Places(source.read(path), "vllm")


def test_the_nearest_line_above_is_where_a_value_comes_from(tmp_path):
    made = places(
        tmp_path,
        "h = model.model.layers[1].mlp.output",
        "a = h[-1].save()",
        "h = model.model.layers[2].output[0]",
        "b = h[-1].save()",
        "h = model.model.layers[3].mlp.output",
        "c = h[-1].save()",
        returned='{"a": a, "b": b, "c": c}',
    )
    assert [made.origin(name).lineno for name in "abc"] == [7, 9, 11]
    assert [one.layer for one in made.reads("b")] == [2]
    assert read_edit(made, "b", Held("mlp", "half", 2)).line == 9


def test_a_loop_and_a_branch_keep_what_may_have_come_before(tmp_path):
    made = places(
        tmp_path,
        "h = model.model.layers[0].mlp.output",
        "if model:",
        "    h = model.model.layers[1].mlp.output",
        "for n in range(2):",
        "    x = h[-1].save()",
        "    h = model.model.layers[2].mlp.output",
    )
    assert {one.layer for one in made.reads("x")} == {0, 1, 2}


def test_what_a_name_is_filled_with_is_of_its_last_making(tmp_path):
    made = places(
        tmp_path,
        "x = [].save()",
        "x.append(model.model.layers[0].output[0])",
        "x = [].save()",
        "x.append(model.model.layers[1].output[0])",
    )
    assert [one.layer for one in made.reads("x")] == [1]


def test_a_write_is_of_the_module_that_its_name_has_then(tmp_path):
    made = places(
        tmp_path,
        "h = model.model.layers[1].mlp.output",
        "h[-1] = 0",
        "layer = model.model.layers[2]",
        "h = layer.mlp.output",
        "h[-1] = 0",
        "layer = model.model.layers[3]",
        "layer.mlp.output[-1] = 0",
        "x = 1",
    )
    assert [one.layer for one in made.writes()] == [1, 2, 3]


@pytest.mark.parametrize(
    "made",
    [
        ["h, r = model.model.layers[1].output", "mid = h + r"],
        ["layer = model.model.layers[1]", "h, r = layer.output", "mid = (h + r).clone()"],
        ["out = model.model.layers[1].output", "mid = sum(out)"],
    ],
)
def test_a_write_into_what_is_made_of_names_has_its_line_and_is_put_back(tmp_path, made):
    lines = [*made, "mid[-1] = 0.5", "x = mid[-1].save()"]
    found = places(tmp_path, *lines)
    [write] = found.writes()
    assert (write.line, write.layer) == (7 + len(made), 1)
    edit = write_edit(found, Parting(1, 0, 0, (3,), 4, "dropped"))
    assert edit.line == write.line
    module = "layer" if "layer" in made[0].split()[0] else "model.model.layers[1]"
    put = f"{module}.output = (mid - {module}.output[1], {module}.output[1])"
    assert edit.after.splitlines()[-1].strip() == put


@pytest.mark.parametrize("number", ["1", "middle"])
def test_a_sum_that_is_changed_in_place_under_its_name_is_put_back(tmp_path, number):
    """Nothing else is changed: what was to have an effect stands there."""
    lines = [f"layer = model.model.layers[{number}]", "mid = layer.output[0] + layer.output[1]"]
    used = ["n = mid.norm()", "mid *= 0.5", "x = mid[-1].save()"]
    found = places(tmp_path, *lines, *used)
    assert found.writes() == []
    edit = write_edit(found, Parting(1, 0, 0, (3,), 4, "dropped"))
    assert edit.line == 10 and edit.after.splitlines()[0].strip() == "mid *= 0.5"
    put = "layer.output = (mid - layer.output[1], layer.output[1])"
    assert edit.after.splitlines()[1].strip() == put
    assert write_edit(found, Parting(1, 0, 0, (3,), 4, "elsewhere")) is None
    # Which of two is meant is not known.
    other = ["other = layer.output[0] * 2", "other *= 2", "x = (other + mid + n).save()"]
    both = places(tmp_path, *lines, *used[:2], *other)
    assert write_edit(both, Parting(1, 0, 0, (3,), 4, "dropped")) is None


def test_what_is_put_back_is_the_write_and_not_what_it_is_made_of(tmp_path):
    lines = [
        "layer = model.model.layers[1]",
        "h, r = layer.output",
        "mid = h + r",
        "mid[-1] = 0.5",
        "layer.output[0][:] = mid",
        "x = 1",
    ]
    edit = write_edit(places(tmp_path, *lines), Parting(1, 0, 0, (3,), 4, "first-half"))
    assert edit.after.splitlines()[-1].strip() == "layer.output[1][:] = 0"


def test_what_is_gathered_from_names_is_no_write_to_the_model(tmp_path):
    lines = ["h = model.model.layers[1].output[0]", "kept = dict(a=h)", "kept['b'] = h", "x = kept"]
    assert places(tmp_path, *lines).writes() == []


def test_one_half_of_a_pair_of_names_is_suspected(tmp_path):
    lines = ["h = model.model.layers[0].mlp.output", "h, r = model.model.layers[2].output"]
    edit = suspect(places(tmp_path, *lines, "x = (h[-1] * 2).save()"), "x")
    assert edit.after.strip() == "x = ((h + r)[-1] * 2).save()"
    assert suspect(places(tmp_path, *lines, "h = h + r", "x = (h * 2).save()"), "x") is None

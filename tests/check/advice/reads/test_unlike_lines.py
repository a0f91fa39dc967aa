"""The line that the wrong values alone are computed by, and that `hf` has otherwise."""

import pytest
import torch

from conformance.check.advice import findings, requests
from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding, as_python
from conformance.check.advice.reads import batch_axis
from conformance.check.advice.reads.left_out_parts import left_out
from conformance.check.advice.reads.unlike_lines import unlike_lines
from conformance.check.advice.writes.causes import ordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values import relations
from conformance.check.values.divergence import Parting
from conformance.judge.cell import Judgement
from conformance.records import Judged, Site, Verdict

#: Of each step the parts of the last token's stream along the row of the token that was taken.
PARTS = """\
import torch

STEPS = 6


def hf(model):
    with model.generate("a", max_new_tokens=STEPS, do_sample=False) as tracer:
        attention, mlp, ids = [].save(), [].save(), [].save()
        for _ in tracer.iter[:STEPS]:
            first, second = [], []
            for layer in model.model.layers:
                first.append(layer.self_attn.output[0][0, -1].clone())
                second.append(layer.mlp.output[0, -1].clone())
            token = model.lm_head.output[0, -1].argmax(dim=-1)
            row = model.lm_head.weight[token]
            attention.append(torch.stack(first) @ row)
            mlp.append(torch.stack(second) @ row)
            ids.append(token)
    return {"attention": torch.stack(attention), "mlp": torch.stack(mlp), "ids": ids}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=STEPS) as tracer:
        attention, mlp, ids = [].save(), [].save(), [].save()
        for _ in tracer.iter[:STEPS]:
            first, second = [], []
            for layer in model.model.layers:
                first.append(layer.self_attn.output[-1].clone())
                second.append(layer.mlp.output[-1].clone())
            token = model.samples[0, 0].clone()
            row = model.lm_head.weight[token]
            attention.append(torch.stack(first) @ row)
            mlp.append(torch.stack(second) @ row)
            ids.append(token)
    return {"attention": torch.stack(attention), "mlp": torch.stack(mlp), "ids": ids}
"""
BOTH = ("attention", "mlp")

#: A direction of four prompts, taken out of the stream of two others.
PROJECTED = """\
import torch


def hf(model):
    middle = len(model.model.layers) // 2
    with model.trace() as tracer:
        means = {}.save()
        for number, prompt in enumerate("abcd"):
            n = len(model.tokenizer(prompt)["input_ids"])
            with tracer.invoke(prompt):
                stream = model.model.layers[middle].output[:, -n:]
                means[number] = stream.mean(dim=1)[0]
    direction = (means[0] + means[1]) / 2 - (means[2] + means[3]) / 2
    direction = direction / direction.norm()
    with model.trace() as tracer:
        for number, prompt in enumerate("ef"):
            with tracer.invoke(prompt):
                for layer in model.model.layers[middle:]:
                    stream = layer.output
                    removed = (stream @ direction)[..., None] * direction
                    layer.output[:] = stream - removed
    return {"direction": direction}


def vllm(model):
    middle = len(model.model.layers) // 2
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        means = {}.save()
        for number, prompt in enumerate("abcd"):
            with tracer.invoke(prompt):
                layer = model.model.layers[middle]
                stream = layer.output[0] + layer.output[1]
                means[number] = stream.mean(dim=0)
    direction = (means[0] + means[1]) / 2 - (means[2] + means[3]) / 2
    direction = direction / direction.norm()
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for number, prompt in enumerate("ef"):
            with tracer.invoke(prompt):
                for layer in model.model.layers[middle:]:
                    stream = layer.output[0] + layer.output[1]
                    removed = (stream @ direction)[..., None] * direction
                    layer.output[0][:] = stream - removed
                    layer.output[1][:] = 0
    return {"direction": direction}
"""
DIRECTION = "direction = (means[0] + means[1]) / 2 - (means[2] + means[3]) / 2"

#: Donors of one run put into another one, a layer and a token at a time.
GRID = """\
import torch


def hf(model):
    with model.trace("a"):
        donors = [model.model.layers[index].output.save() for index in (1, 2)]
    grid = torch.zeros(2, 2)
    for row, index in enumerate((1, 2)):
        for column, position in enumerate((-2, -1)):
            with model.trace("b"):
                model.model.layers[index].output[:, position] = donors[row][:, position]
                logits = model.lm_head.output[0, -1].save()
            grid[row, column] = logits[3] - logits[4]
    return {"grid": grid}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=1):
        donors = [].save()
        for index in (1, 2):
            layer = model.model.layers[index]
            donors.append(layer.output[0] + layer.output[1])
    grid = torch.zeros(2, 2)
    for row, index in enumerate((1, 2)):
        for column, position in enumerate((-2, -1)):
            with model.trace("b", temperature=0.0, max_tokens=1):
                layer = model.model.layers[index]
                layer.output[0][position] = donors[row][position]
                layer.output[1][position] = 0
                logits = model.logits[0].save()
            grid[row, column] = logits[3] - logits[4]
    return {"grid": grid}
"""


def port(tmp_path, text, was="", now=""):
    """The file with `now` for the last `was` in it, which is the one of `vllm`."""
    begin, middle, end = text.rpartition(was) if was else (text, "", "")
    assert begin and middle == was
    path = tmp_path / "mine.py"
    path.write_text(begin + now + end)
    return Places(source.read(path), "vllm", dual=True)


@pytest.mark.parametrize("text", [PARTS, PROJECTED, GRID])
def test_nothing_is_sure_of_a_file_that_is_right(tmp_path, text):
    places = port(tmp_path, text)
    every = {"attention", "mlp", "ids", "direction", "grid"}
    for name in every:
        assert not [one for one in unlike_lines(places, name, [name], ()) if one.sure]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (
            f"{DIRECTION}\n",
            "half = means[0] + means[1] - means[2] - means[3]\n    direction = half / 2\n",
        ),
        ("means = {}.save()", "means = [None] * 4\n        means = means.save()"),
        ("means = {}.save()", "means = [].save()"),
    ],
)
def test_nothing_is_sure_of_what_is_computed_in_another_way(tmp_path, was, now):
    places = port(tmp_path, PROJECTED, was, now)
    assert not [one for one in unlike_lines(places, "direction", ["direction"], ()) if one.sure]


@pytest.mark.parametrize(
    ("was", "now", "wrong", "line", "after"),
    [
        ("weight[token]", "weight[ids[-1] if ids else token]", BOTH, 31, "weight[token]"),
        (
            "weight[token]",
            "weight[model.tokenizer('a').input_ids[-1]]",
            BOTH,
            31,
            "row = model.lm_head.weight[token]",
        ),
        ("mlp.output[-1]", "mlp.output[0]", ["mlp"], 29, "layer.mlp.output[-1].clone()"),
        ("mlp.output[-1]", "mlp.input[-1]", ["mlp"], 29, "layer.mlp.output[-1].clone()"),
        ("in model.model.layers:", "in model.model.layers[1:]:", BOTH, 27, "model.layers:"),
        ("[:STEPS]", "[: STEPS - 1]", (*BOTH, "ids"), 25, "in tracer.iter[:STEPS]:"),
    ],
)
def test_the_line_is_on_the_way_to_all_that_is_wrong_and_to_nothing_right(
    tmp_path, was, now, wrong, line, after
):
    right = {"attention", "mlp", "ids"} - set(wrong)
    [told] = unlike_lines(port(tmp_path, PARTS, was, now), wrong[0], wrong, right)
    assert told.sure and told.edit.line == line
    assert after in told.edit.after if after else not told.edit.after


def test_one_line_of_another_reading_is_shown_without_an_edit(tmp_path):
    places = port(tmp_path, PARTS, "samples[0, 0]", "logits[0].argmin(dim=-1)")
    [told] = unlike_lines(places, "mlp", ["mlp", "attention", "ids"], ())
    assert not told.sure and told.edit == Edit(30, places.file.line(30))


@pytest.mark.parametrize(
    ("was", "now", "line", "after"),
    [
        ("(means[0] + means[1])", "(means[0] + means[2])", 34, DIRECTION),
        (f"{DIRECTION}\n", "direction = means[0] - (means[2] + means[3]) / 2\n", 34, DIRECTION),
        ("    direction = direction / direction.norm()\n", "", 34, "direction.norm()"),
        ("stream.mean(dim=0)", "stream[-1]", 33, ""),
    ],
)
def test_a_value_that_a_write_uses_is_made_otherwise(tmp_path, was, now, line, after):
    places = port(tmp_path, PROJECTED, was, now)
    unknown = {"direction": Finding("unknown", "`direction` differs", "direction")}
    part = Parting(layer=1, step=0, sequence=4, tokens=(0,), total=1, kind="", own=4, ran=6)
    first, *_ = ordered(part, places, [], dual=True, unknown=unknown)
    assert (first.kind, first.edit.line) == ("used", line)
    assert first.edit.after.endswith(after) if after else not first.edit.after


def test_a_read_of_another_layer_is_named_where_a_write_uses_what_comes_of_it(tmp_path):
    places = port(tmp_path, PROJECTED, "layers[middle]\n", "layers[middle + 1]\n")
    unknown = {"direction": Finding("unknown", "`direction` differs", "direction")}
    part = Parting(layer=1, step=0, sequence=4, tokens=(0,), total=1, kind="", own=4, ran=6)
    first, *_ = ordered(part, places, [], dual=True, unknown=unknown)
    assert first.edit.after.strip() == "layer = model.model.layers[middle]"


@pytest.mark.parametrize(
    ("text", "was", "now", "kind", "line", "after"),
    [
        (PROJECTED, "[middle:]", "[middle + 1 :]", "other-layer", 39, "model.layers[middle:]:"),
        (GRID, "layers[index]\n", "layers[index - 1]\n", "other-layer", 27, "layers[index]"),
        (
            PROJECTED,
            "layer.output[0][:] = stream - removed\n",
            "if number == 0:\n                        layer.output[0][:] = stream - removed\n",
            "dropped",
            42,
            "",
        ),
    ],
)
def test_what_says_where_and_for_whom_is_written_comes_before_the_write(
    tmp_path, text, was, now, kind, line, after
):
    places = port(tmp_path, text, was, now)
    part = Parting(layer=1, step=0, sequence=1, tokens=(0,), total=1, kind=kind, own=4, ran=6)
    first, *_ = ordered(part, places, [], dual=True)
    assert first.edit.line == line
    assert first.edit.after.endswith(after) if after else not first.edit.after


def test_the_place_in_a_result_is_compared_too(tmp_path):
    places = port(tmp_path, GRID, "grid[row, column]", "grid[column, row]")
    [told] = unlike_lines(places, "grid", ["grid"], ())
    assert told.sure and told.edit.after.strip().startswith("grid[row, column] = ")


def test_a_call_of_the_tokenizer_is_no_part_of_the_model(tmp_path):
    assert left_out(port(tmp_path, PROJECTED), "direction") is None


def test_two_names_of_which_each_has_the_others_value_are_swapped(tmp_path):
    text = (
        "def hf(model):\n    with model.trace('a'):\n        a = model.x.output.save()\n"
        "        b = model.y.output.save()\n    return {'one': a, 'two': b}\n\n\n"
        "def vllm(model):\n    with model.trace('a', max_tokens=1):\n"
        "        a = model.x.output.save()\n        b = model.y.output.save()\n"
        "    return {'one': b, 'two': a}\n"
    )
    file = port(tmp_path, text).file
    first, second = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(5))
    one, two = str(Site("one")), str(Site("two"))
    judgement = Judgement(
        Verdict.WRONG, "", tuple(Judged(site, Verdict.WRONG, "off") for site in (one, two))
    )
    seen = {f"float32:truth|{one}": first, f"float32:truth|{two}": second}
    mine = {one: second, two: first}
    [told] = findings.findings(file, seen, mine, judgement, "model.layers", dual=True)
    assert told.kind == "swapped" and "`two`" in told.words
    assert told.edit.after.strip() == "return {'one': a, 'two': b}"


def test_an_edit_that_is_no_python_is_not_shown():
    text = "a = 1\nb = 2\n"
    bad, good = Edit(2, "b = 2", "b = .x"), Edit(2, "b = 2", "b = 3\nc = 4")
    kept, left = as_python(text, [Finding("", "", edit=good), Finding("", "", edit=bad)])
    assert kept.edit == good
    assert left.edit == Edit(2, "b = 2")


def test_how_far_a_value_is_off_is_a_share_of_the_whole():
    truth = torch.tensor([3.0, 4.0, float("nan")])
    assert relations.distance(torch.tensor([3.0, 9.0, 1.0]), truth) == pytest.approx(1.0)
    assert relations.distance(truth[:2], truth) is None
    assert relations.distance(torch.tensor([1]), torch.tensor([2])) is None


def test_a_batch_axis_is_counted_no_more_in_what_a_list_holds_either(tmp_path):
    was = "layer.output[0][position] = donors[row][position]"
    now = "layer.output[0][:, position] = donors[row][:, position]"
    places = port(tmp_path, GRID, was, now)
    [edit] = [one for one in batch_axis.written_by(places, places.writes()) if one.line == 28]
    assert edit.after.strip() == was
    assert not batch_axis.lost(port(tmp_path, GRID))


@pytest.mark.parametrize(
    ("asked", "line", "after"),
    [("STEPS - 1", 23, "max_tokens=STEPS) as tracer:"), ("2 + 4", 0, ""), ("len(IDS)", 0, "")],
)
def test_another_number_of_tokens_is_told_where_it_is_known(tmp_path, asked, line, after):
    places = port(tmp_path, PARTS, "max_tokens=STEPS", f"max_tokens={asked}")
    told = [one.edit for one in requests.other_lengths(places)]
    assert [one.line for one in told] == [line] * bool(line)
    assert all(after in one.after for one in told)


def test_one_line_behind_values_of_other_shapes_is_shown_once(tmp_path):
    file = port(tmp_path, PARTS, "[:STEPS]", "[: STEPS - 1]").file
    maker = torch.Generator().manual_seed(2)
    truth, mine = (
        {str(Site(name)): torch.randn(rows, 30, generator=maker) for name in BOTH}
        for rows in (6, 5)
    )
    judgement = Judgement(
        Verdict.STRUCTURE, "", tuple(Judged(one, Verdict.STRUCTURE, "shape") for one in truth)
    )
    seen = {f"float32:truth|{site}": value for site, value in truth.items()}
    [told] = findings.findings(file, seen, mine, judgement, "model.layers", dual=True)
    assert told.edit.line == 25 and "`mlp`" in told.words

"""What a trace computes is no view of a buffer; copies that are written to; values that are 0."""

import pytest
import torch

from conformance.check.advice.edits import alias_edit
from conformance.check.advice.errors import failures
from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values import compare
from conformance.check.values.divergence import Parting
from conformance.records import Outcome, Status

TRACE = """\
def helper(layer):
    return layer.output[0]

def vllm(model):
    rows = [].save()
    with model.trace("x"):
        h = model.model.layers[0].output[0]
        for layer in model.model.layers:
            rows.append(layer.output[1])
        view = model.model.layers[2].output[0][-1:].view(1, -1).save()
        helped = helper(model.model.layers[0]).save()
        copy = model.model.layers[1].output[0].clone().save()
        lens = model.model.norm(h[-1:]).save()
        double = (h * 2).save()
        pair = model.model.layers[3].output
        z = model.model.layers[1].self_attn.o_proj.input.clone()
        z[:, 4:8] = 0
        a = model.logits.output.save()
        b = model.samples.output.save()
        model.model.layers[0].output[0][:] += 1
    return {"rows": rows, "view": view, "helped": helped, "copy": copy, "lens": lens,
            "double": double, "pair": pair, "a": a, "b": b}

def hf(model):
    return {}
"""


@pytest.fixture
def places(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(TRACE)
    return Places(source.read(path), "vllm")


@pytest.mark.parametrize("name", ["rows", "view", "helped", "pair"])
def test_what_is_read_as_it_is_is_the_engines_own_memory(places, name):
    assert places.kept_as_read(name)


@pytest.mark.parametrize("name", ["copy", "lens", "double"])
def test_what_is_copied_or_computed_is_not(places, name):
    assert not places.kept_as_read(name)


def test_two_values_are_not_cloned_as_one(places):
    edit = alias_edit(places, "pair")
    assert (edit.line, edit.after) == (15, "")
    assert ".output[1].clone()" not in alias_edit(places, "view").after
    assert "layers[2].output[0].clone()" in alias_edit(places, "view").after


def test_a_write_to_a_copy_is_mended_where_the_copy_is_made(places):
    edit = write_edit(places, Parting(1, 0, 0, (0, 1), 2, kind="dropped"))
    assert edit.line == 16
    assert edit.after.strip() == "z = model.model.layers[1].self_attn.o_proj.input"
    assert "line 17" in edit.why


def test_the_same_error_further_down_is_mended_with_the_first(places):
    words = "AttributeError: 'Tensor' object has no attribute 'output'"
    detail = 'File "port.py", line 18, in vllm\n    a = model.logits.output.save()'
    outcome = Outcome(Status.ERROR, 0.1, words, detail)
    told = failures.explain(failures.Failed(outcome, places.file, "vllm", there=True))
    edits = [(one.edit.line, one.edit.after.strip()) for one in told.findings]
    assert edits == [(18, "a = model.logits.save()"), (19, "b = model.samples.save()")]


@pytest.mark.parametrize(
    ("values", "blank", "alone"),
    [
        ({"clean": torch.zeros(()), "rows": torch.zeros(2, 3)}, ["clean", "rows"], True),
        ({"clean": torch.zeros(()), "rows": torch.ones(2, 3)}, ["clean"], False),
        ({"clean": torch.ones(())}, [], False),
        ({"ids": torch.zeros(3, dtype=torch.long)}, [], False),
        ({"clean": torch.zeros(()), "ids": torch.ones(3, dtype=torch.long)}, ["clean"], False),
    ],
)
def test_values_that_are_0_on_transformers_show_nothing(values, blank, alone):
    seen = {f"float32:truth|p0/s0/{name}": value for name, value in values.items()}
    sites, nothing = compare.zeros(seen)
    assert [site.name for site in sites] == blank
    assert nothing is alone

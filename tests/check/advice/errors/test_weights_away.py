"""Weights that are used outside of a trace, which are not there on vLLM."""

import pytest
import torch

from conformance.check.advice.errors import failures, weights
from conformance.check.advice.findings import _Explaining
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.records import Outcome, Site, Status

FILE = """\
def unembed(model, x):
    return x @ model.lm_head.weight.T


def hf(model):
    return {{}}


def vllm(model):
    {before}
    with model.trace("a"):
        h = model.model.layers[1].mlp.output[-1].save()
        {inside}
    {after}
    return {{"x": x}}
"""


def file(folder, before="pass", inside="pass", after="pass"):
    path = folder / "away.py"
    path.write_text(FILE.format(before=before, inside=inside, after=after))
    return source.read(path)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ({"after": "x = h @ model.lm_head.weight.T"}, 14),
        ({"before": "W = model.lm_head.weight", "inside": "x = (h @ W.T).save()"}, 10),
        ({"before": "head = model.lm_head", "after": "x = h @ head.weight.T"}, 14),
        ({"after": "x = model.model.norm(h)"}, 14),
        ({"after": "x = unembed(model, h)"}, 2),
    ],
)
def test_what_uses_a_weight_outside_is_named(tmp_path, lines, line):
    edit = weights.behind(Places(file(tmp_path, **lines), "vllm"), "x")
    assert (edit.line, edit.after) == (line, "") and "another process" in edit.why


@pytest.mark.parametrize(
    "form", ["weight.shape[1]", "weight.size(1)", "weight.ndim", "weight.numel()"]
)
def test_what_asks_for_its_shape_is_not(tmp_path, form):
    lines = {"before": f"heads = model.lm_head.{form} // 4", "after": "x = h.reshape(heads, -1)"}
    assert weights.behind(Places(file(tmp_path, **lines), "vllm"), "x") is None


@pytest.mark.parametrize(
    "lines",
    [
        {"inside": "x = (h @ model.lm_head.weight.T).save()"},
        {"before": "head = model.lm_head", "inside": "x = (h @ head.weight.T).save()"},
        {"inside": "x = unembed(model, h).save()"},
        {"after": "x = h * config.weight"},
        {"inside": "out = save(model.model.layers[2].mlp.output)", "after": "x = out.norm()"},
        {"inside": "save(out := h); out = model.model.norm.output", "after": "x = out.norm()"},
    ],
)
def test_what_uses_it_in_a_block_is_not(tmp_path, lines):
    assert weights.outside(Places(file(tmp_path, **lines), "vllm")) == []


def test_a_value_that_is_made_of_it_is_told_by_that_alone(tmp_path):
    site, made = Site("x"), file(tmp_path, after="x = h @ model.lm_head.weight.T")
    mine, truth = torch.zeros(64), torch.arange(64.0)
    places = Places(made, "vllm")
    found = _Explaining(places, {site: truth}, {site: mine}, [], {}, written=False).read(site)
    assert found.kind == "weights" and found.edit.line == 14


def test_an_error_of_it_is_told_by_its_line(tmp_path):
    made = file(tmp_path, after="x = model.model.norm(h)")
    reason = "RuntimeError: Tensor on device meta is not on the expected device cpu!"
    told = failures.explain(failures.Failed(Outcome(Status.ERROR, 0.1, reason), made, "vllm", True))
    assert told.findings[0].kind == "weights" and told.findings[0].edit.line == 14

"""float32 values that are written where the model computes in bf16."""

import torch

from conformance.check.advice.errors import failures
from conformance.check.advice.writes.precisions import widened
from conformance.check.parsing import source
from conformance.records import Outcome, Status

FILE = """\
def hf(model):
    with model.trace("x"):
        h = model.model.layers[1].output
        model.model.layers[1].output = h + VECTOR
        model.model.layers[0].output = (h + VECTOR).to(h.dtype)
    return {}


def vllm(model):
    with model.trace("x", temperature=0.0):
        model.model.layers[0].output = (A.to(A.dtype), B)
        model.model.layers[1].output = (A + VECTOR, B)
    return {}
"""


def read(folder):
    path = folder / "wide.py"
    path.write_text(FILE)
    return source.read(path)


def test_a_model_that_refuses_float32_is_told_by_the_write(tmp_path):
    words = "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::BF"
    outcome = Outcome(Status.ERROR, reason=words)
    told = failures.explain(failures.Failed(outcome, read(tmp_path), "hf"))
    assert "cast what is written" in told.words
    assert [one.edit.line for one in told.findings] == [4]


def test_an_engine_that_takes_it_is_told_by_its_stream(tmp_path):
    rows = torch.zeros(3, 4)
    seen = {
        "layers|p0/s0/stream.0": rows.bfloat16(),
        "layers|p0/s0/stream.1": rows,
        "layers|p0/s0/stream.2": rows,
        "p0/s0/hidden": rows,
    }
    [found] = widened(read(tmp_path), seen)
    assert (found.kind, found.layer, found.edit.line) == ("precision", 1, 12)
    assert "since layer 1 the residual stream is float32" in found.words
    narrow = {name: value.bfloat16() for name, value in seen.items()}
    assert widened(read(tmp_path), narrow) == ()

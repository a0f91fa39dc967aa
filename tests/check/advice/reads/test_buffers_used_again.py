"""A view that was kept holds what a later layer put into its memory: the mend is a copy."""

import pytest
import torch

from conformance.check.advice.findings import _Explaining
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.known_values import Known
from conformance.records import Site

SITE = Site("before")

MEANT = Known("mlp", "the MLP output of layer 1", torch.randn(4, 8), 1)
LATER = Known(
    "norm-output", "the normed output of input_layernorm in layer 2", torch.randn(4, 8), 2
)
EARLIER = Known(
    "norm-output", "the normed output of input_layernorm in layer 0", torch.randn(4, 8), 0
)


def finding(tmp_path, read, held):
    path = tmp_path / "mine.py"
    path.write_text(
        "def trace(lm):\n"
        '    with lm.model.trace("a"):\n'
        f"        before = lm.model.model.layers[1].{read}\n"
        '    return {"before": before}\n'
    )
    places = Places(source.read(path), "trace")
    explain = _Explaining(
        places, {SITE: MEANT.rows}, {SITE: held.rows}, [MEANT, LATER, EARLIER], {}, written=False
    )
    return explain.read(SITE)


def test_memory_that_a_later_layer_was_given_is_cloned(tmp_path):
    found = finding(tmp_path, "mlp.output.save()", LATER)
    assert (found.kind, found.edit.line) == ("alias", 3)
    assert found.edit.after.strip() == "before = lm.model.model.layers[1].mlp.output.clone().save()"
    assert "input_layernorm in layer 2: a buffer that was overwritten later" in found.words


@pytest.mark.parametrize(
    ("read", "held"),
    [
        ("mlp.output.clone().save()", LATER),  # a copy
        ("mlp.output.save()", EARLIER),  # no later one
        ("input_layernorm.output.save()", LATER),  # read from there
    ],
)
def test_anything_else_is_read_in_a_wrong_place(tmp_path, read, held):
    assert finding(tmp_path, read, held).kind != "alias"

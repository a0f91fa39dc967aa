"""Values are sorted as the model computes them, whatever they are called."""

from pathlib import Path

import pytest

from conformance.check.parsing import source
from conformance.check.parsing.computing_order import computing_order
from conformance.check.parsing.dataflow import Places
from conformance.records import Site

STEPS = """\
def trace(lm):
    with lm.trace("Hello", steps=2) as tracer:
        logits, rows = [].save(), [].save()
        early = lm.layers[0].stream.save()
        for _ in tracer.iter[:2]:
            rows.append(lm.layers[1].stream)
            logits.append(lm.logits)
    return {"a_logits": logits, "rows": rows, "zero": early}
"""

LAYERS = """\
LAYERS = (1, 3)


def hf(model):
    with model.trace("Hello"):
        before = model.model.layers[0].output.save()
        streams, mlps = {}.save(), {}.save()
        for i in LAYERS:
            mlps[i] = model.model.layers[i].mlp.output
            streams[i] = model.model.layers[i].output
        last = model.lm_head.output[:, -1]
        top = last.softmax(-1).save()
    return {"a_top": top, "streams": streams, "mlps": mlps, "zero": before}
"""


@pytest.mark.parametrize(
    ("text", "function", "expected"),
    [
        (
            STEPS,
            "trace",
            ["p0/s0/zero", "p0/s0/rows", "p0/s0/a_logits", "p0/s1/rows", "p0/s1/a_logits"],
        ),
        (
            LAYERS,
            "hf",
            [
                "p0/s0/zero",
                "p0/s0/mlps.1",
                "p0/s0/streams.1",
                "p0/s0/mlps.3",
                "p0/s0/streams.3",
                "p0/s0/a_top",
            ],
        ),
    ],
)
def test_a_value_stands_where_it_is_read(tmp_path: Path, text, function, expected):
    path = tmp_path / "file.py"
    path.write_text(text)
    order = computing_order(Places(source.read(path), function))
    sites = [Site.parse(one) for one in expected]
    backwards = sites[::-1]
    assert sorted(backwards, key=order) == sites


def test_what_is_not_found_in_the_text_comes_last_and_prompts_one_after_the_other(tmp_path):
    path = tmp_path / "file.py"
    path.write_text(STEPS)
    order = computing_order(Places(source.read(path), "trace"))
    sites = [Site("zero"), Site("elsewhere"), Site("zero", prompt=1)]
    backwards = sites[::-1]
    assert sorted(backwards, key=order) == sites

"""Rows are called tokens where they are known to be a prompt's, and entries elsewhere."""

import pytest
import torch

from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values import compare
from conformance.records import Judged, Precision, Thresholds, Verdict

TOKENS, WIDTH = 6, 32
SEEN = {
    "layers|p0/s0/ids": torch.arange(TOKENS),
    "layers|p0/s0/stream.0": torch.zeros(TOKENS, WIDTH),
    "value|0/0|lm_head|logits": torch.zeros(TOKENS, 64),
}


def message(shape, off, *, stacked=False):
    """What is said of a value of this shape whose entries `off` differ."""
    maker = torch.Generator().manual_seed(1)
    truth = torch.randn(shape, generator=maker)
    seen = {"float32:truth|p0/s0/x": truth}
    for way in ("split", "sdpa", "fused"):
        noise = 1 + 1e-6 * torch.randn(shape, generator=maker)
        seen[f"float32:{way}|p0/s0/x"] = truth * noise
    mine = truth.clone()
    mine[off] = mine[off].flip(-1)
    ids = ([list(range(TOKENS))], [list(range(TOKENS))])
    honest = compare.honest(seen, Precision.FLOAT32)
    told = compare.compare(
        {"p0/s0/x": mine},
        honest,
        ids,
        Thresholds(),
        Precision.FLOAT32,
        of_tokens=compare.token_rows(SEEN, lambda name: stacked and name == "x"),
    )
    return told.judgement.observations[0].message


@pytest.mark.parametrize(
    ("shape", "off", "begin"),
    [
        ((TOKENS, WIDTH), slice(1, 3), "tokens 1-2 of 6 off"),
        ((1, TOKENS, 64), (0, slice(1, 3)), "tokens 1-2 of 6 off"),
        ((4, TOKENS), slice(0, 3), "entries 0-2 of 4 of the first axis off"),
        ((4, TOKENS), slice(0, 4), "every entry of the first axis off"),
        ((TOKENS, TOKENS), slice(0, 3), "entries 0-2 of 6 of the first axis off"),
        ((4, WIDTH), slice(0, 3), "entries 0-2 of 4 of the first axis off"),
        ((4, TOKENS, WIDTH), slice(1, 2), "entry 1 of 4 of the first axis off"),
    ],
)
def test_rows_are_called_what_they_are_known_to_be(shape, off, begin):
    assert message(shape, off).startswith(begin)


def test_a_stack_of_as_many_as_the_prompt_has_tokens_is_of_entries():
    said = message((TOKENS, WIDTH), slice(1, 3), stacked=True)
    assert said.startswith("entries 1-2 of 6 of the first axis off")


def test_what_drifts_is_said_of_rows_too():
    drifts = Judged("p0/s0/x", Verdict.DRIFT, "2 × for the median token", shape=(4, 6))
    told = compare._of_entries(drifts, Thresholds(), Precision.BF16)
    assert told.message == "2 × for the median row"


def test_what_is_stacked_is_read_in_the_text(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n\n\ndef hf(model):\n    with model.trace('a'):\n        rows = []\n"
        "        for layer in model.model.layers:\n            rows.append(layer.output[0, -1])\n"
        "        x = torch.stack(rows).save()\n        y = model.model.norm.output.save()\n"
        "    return {'x': x, 'y': y}\n"
    )
    places = Places(source.read(path), "hf")
    assert places.stacked("x") and not places.stacked("y")


def test_nothing_in_the_place_of_a_value_is_told_and_has_no_entries():
    none = Judged("p0/s0/x", Verdict.STRUCTURE, "shape [0] of [8]", shape=(0,))
    told = compare._of_entries(none, Thresholds(), Precision.FLOAT32)
    assert told.message == "shape [0] of [8]"

"""A write whose value is read in the wrong place: the line that reads it is the cause."""

from dataclasses import replace

import pytest
import torch

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.advice.writes.causes import ordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.check.values.identify import Held
from conformance.check.values.known_values import Known
from conformance.check.values.replaced_values import Given, given

SUM = "(model.model.layers[1].output[0] + model.model.layers[1].output[1])"

PART = Parting(1, 0, 0, (3,), 4)

HF = """\
def hf(model):
    with model.trace("a"):
        donor = model.model.layers[1].{read}.save()
    with model.trace("b"):
        model.model.layers[1].output[:, -1] = donor
        logits = model.lm_head.output.save()
    return {{"logits": logits}}

"""

#: What a donor is read by, which lines read half of a stream, and one of them mended.
HALVES = {
    "a value": (
        """\
def vllm(model):
    with model.trace("a"):
        donor = model.model.layers[1].output[0][-1].save()
    with model.trace("b"):
        model.model.layers[1].output[0][-1] = donor
        model.model.layers[1].output[1][-1] = 0
""",
        {11: f"donor = {SUM}[-1].save()"},
    ),
    "a dict of layers": (
        """\
def vllm(model):
    with model.trace("a"):
        kept = {}.save()
        for i in range(4):
            out = model.model.layers[i].output
            kept[i] = out[0][-1].clone()
    for i in range(4):
        with model.trace("b"):
            model.model.layers[i].output[0][-1] = kept[i]
            model.model.layers[i].output[1][-1] = 0
""",
        {14: "kept[i] = (out[0] + out[1])[-1].clone()"},
    ),
    "a difference": (
        """\
def vllm(model):
    with model.trace("a"):
        layer = model.model.layers[1]
        love = layer.output[0][-1].save()
    with model.trace("b"):
        branch, rest = model.model.layers[1].output
        hate = branch[-1].save()
    vector = 4.0 * (love - hate)
    with model.trace("c"):
        model.model.layers[1].output[0][:] += vector
""",
        {
            12: "love = (layer.output[0] + layer.output[1])[-1].save()",
            15: "hate = (branch + rest)[-1].save()",
        },
    ),
    "a helper's parameter": (
        """\
def put(layer, value):
    layer.output[0][-1] = value
    layer.output[1][-1] = 0

def vllm(model):
    with model.trace("a"):
        donor = model.model.layers[1].output[1][-1].save()
    with model.trace("b"):
        put(model.model.layers[1], donor)
""",
        {15: f"donor = {SUM}[-1].save()"},
    ),
    "both halves, added later": (
        """\
def vllm(model):
    with model.trace("a"):
        first = model.model.layers[1].output[0][-1]
        rest = model.model.layers[1].output[1][-1]
        donor = (first + rest).save()
    with model.trace("b"):
        model.model.layers[1].output[0][-1] = donor
""",
        {},
    ),
    "the layer's own half, put back": (
        """\
def vllm(model):
    with model.trace("b"):
        half = model.model.layers[1].output[0]
        half = half * 2
        model.model.layers[1].output = (half, model.model.layers[1].output[1])
""",
        {},
    ),
}


def places(tmp_path, text):
    path = tmp_path / "port.py"
    path.write_text(text)
    return Places(source.read(path), "vllm")


@pytest.mark.parametrize("name", HALVES)
def test_half_of_a_stream_that_is_written_is_named_where_it_is_read(tmp_path, name):
    text, lines = HALVES[name]
    told = ordered(PART, places(tmp_path, HF.format(read="output[:, -1]") + text), [], dual=True)
    sources = [one for one in told if one.kind == "half"]
    assert {one.edit.line: one.edit.after.strip() for one in sources} == lines
    assert told[: len(lines)] == tuple(sources)
    assert len(told) == len(lines) + 1 and told[-1].words.startswith("so " if lines else "the ")


def test_an_mlp_output_that_hf_writes_too_is_no_half_and_neither_is_another_family_s(tmp_path):
    text = HF.format(read="mlp.output[:, -1]") + HALVES["a value"][0]
    [told] = ordered(PART, places(tmp_path, text), [], dual=True)
    assert told.kind == "write"
    text = HF.format(read="output[:, -1]") + HALVES["a value"][0]
    [told] = ordered(PART, places(tmp_path, text), [], dual=False)
    assert told.kind == "write"


def test_a_value_that_is_returned_is_named_beside_the_line_and_others_come_after(tmp_path):
    port = places(tmp_path, HF.format(read="output[:, -1]") + HALVES["a value"][0])
    [line] = HALVES["a value"][1]
    before = port.file.line(line)
    own = Edit(line, before, f"        {HALVES['a value'][1][line]}", ordered_why(port))
    mlp = Finding("mlp", "`donor` holds the MLP output", "donor", edit=own)
    reads = [Finding("other", "`x` is off", "x"), mlp]
    told = ordered(PART, port, reads, dual=True)
    assert [one.kind for one in told] == ["half", "write", "other"]
    assert told[0].words.endswith("The same edit is for `donor`")


def ordered_why(port):
    return ordered(PART, port, [], dual=True)[0].edit.why


def test_another_layer_s_value_that_is_written_is_mended_where_it_is_read(tmp_path):
    port = places(tmp_path, HF.format(read="output[:, -1]") + HALVES["a value"][0])
    held, meant = (Held("stream", f"the stream after layer {n}", n) for n in (1, 2))
    part = Parting(1, 0, 0, (3,), 4, given=Given(held, meant))
    first, write = ordered(part, port, [], dual=False)
    assert (first.kind, first.edit.line) == ("other-value", 11)
    assert "layers[2].output[0][-1].save()" in first.edit.after
    assert "the stream after layer 1 instead of the stream after layer 2" in first.words
    assert write.edit is None


MAKER = torch.Generator().manual_seed(3)
STREAM, BRANCH, OWN = (torch.randn(4, 16, generator=MAKER).double() for _ in range(3))
KNOWN = [
    Known("stream", "the stream", STREAM, 1),
    Known("mlp", "the MLP output", BRANCH, 1),
]


@pytest.mark.parametrize("left", [0, OWN[-1:]])
def test_what_is_written_is_known_by_its_numbers_alone_or_beside_a_half_that_was_left(left):
    found = given(BRANCH[-1:] + left, STREAM[-1:], {"residual": OWN[-1:]}, KNOWN)
    assert found.half and found.left == ("first-half" if bool(torch.is_tensor(left)) else "")
    assert found.words == (
        "what is written is the MLP output of the last token, half of the residual stream, "
        "instead of the stream of the last token"
    )
    spread = given(BRANCH[-1:].expand(3, -1), STREAM[-1:], {}, KNOWN)
    assert spread.held == found.held
    assert given(OWN[-1:] * 3, STREAM[-1:], {"residual": OWN[-1:]}, KNOWN) is None


def runs(*ids):
    """Sequences of these ids, each with a stream of its own."""
    maker = torch.Generator().manual_seed(7)
    streams = [torch.randn(4, 16, generator=maker).double() for _ in ids]
    known = [
        Known("stream", "the stream after layer 1", rows, 1, sequence=number)
        for number, rows in enumerate(streams)
    ]
    given = [Known("ids", "the ids", torch.tensor(one), sequence=n) for n, one in enumerate(ids)]
    return streams, [*known, *given]


@pytest.mark.parametrize(
    ("other", "again", "words"),
    [
        ([1, 2, 3], True, "it is what prompt 1 has there, another run of the same text, with what"),
        (
            [1, 2, 4],
            False,
            "what is written is the stream after layer 1 of the last token of prompt 1",
        ),
    ],
)
def test_the_same_of_another_run_is_no_other_value_and_names_the_run(other, again, words):
    (meant, held), known = runs([1, 2, 3], other)
    found = given(held[-1:], meant[-1:], {}, known)
    assert found.again == again and found.words.startswith(words)


def test_what_another_run_of_the_text_has_is_blamed_on_no_read_of_it(tmp_path):
    port = places(tmp_path, HF.format(read="output[:, -1]") + HALVES["a value"][0])
    held, meant = (Held("stream", "the stream after layer 1", 1, sequence=n) for n in (0, 1))
    part = Parting(1, 0, 0, (3,), 4, given=Given(held, meant, again=True))
    [write] = ordered(part, port, [], dual=False)
    assert write.words.startswith("the layers differ since layer 1")


#: What `vllm` does with its stream, and the lines to change.
PROJECTED = {
    "a name, then a slice": (
        """\
        h = layer.output[0]
        layer.output[0][:] = h - (h @ d)[..., None] * d
""",
        {
            13: "h = (layer.output[0] + layer.output[1])",
            14: "layer.output[0][:] = h - (h @ d)[..., None] * d\n        layer.output[1][:] = 0",
        },
    ),
    "one line": (
        """\
        layer.output[0][:] = layer.output[0] - (layer.output[0] @ d)[..., None] * d
""",
        {
            13: "layer.output[0][:] = (layer.output[0] + layer.output[1]) - "
            "((layer.output[0] + layer.output[1]) @ d)[..., None] * d\n"
            "        layer.output[1][:] = 0",
        },
    ),
    "what is added": (
        """\
        h = layer.output[1]
        layer.output[0][:] -= (h @ d)[..., None] * d
""",
        {13: "h = (layer.output[0] + layer.output[1])"},
    ),
    "a pair": (
        """\
        h = layer.output[0]
        layer.output = (h - (h @ d)[..., None] * d, layer.output[1])
""",
        {
            13: "h = (layer.output[0] + layer.output[1])",
            14: "layer.output = (h - (h @ d)[..., None] * d, layer.output[1] * 0)",
        },
    ),
    "the whole": (
        """\
        h = layer.output[0] + layer.output[1]
        layer.output[0][:] -= (h @ d)[..., None] * d
""",
        {},
    ),
}

PROJECTED_ON_HF = """\
def hf(model):
    with model.trace("a"):
        layer = model.model.layers[1]
        h = layer.{read}
        layer.{read}[:] = h - (h @ d)[..., None] * d
        logits = model.lm_head.output.save()
    return {{"logits": logits}}


def vllm(model):
    with model.trace("a"):
        layer = model.model.layers[1]
"""


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(("code", "lines"), PROJECTED.values(), ids=PROJECTED)
def test_half_of_a_stream_that_is_changed_and_put_back_is_read_whole(tmp_path, code, lines, inline):
    """As `output[0]` was the stream of older transformers, and a projection of half is another."""
    file = tmp_path / "own.py"
    head = PROJECTED_ON_HF.format(read="output")
    if inline:
        head = head.replace("h = layer.output", "").replace("h -", "layer.output -")
        head = head.replace("(h @", "(layer.output @")
    file.write_text(head + code)
    places = Places(source.read(file), "vllm")
    told = ordered(replace(PART, layer=1), places, (), dual=True)
    edits = {one.edit.line: one.edit.after.strip() for one in told if one.edit and one.edit.after}
    assert edits == lines
    assert (told[0].kind == "half") == bool(lines)


def test_a_half_that_is_cleared_in_the_block_is_not_to_be_cleared(tmp_path):
    file = tmp_path / "cleared.py"
    lines = ("h = layer.output[0]", "layer.output[0][:] = h * 2", "layer.output[1][:] = 0")
    code = "".join(f"        {one}\n" for one in lines)
    file.write_text(PROJECTED_ON_HF.format(read="output") + code)
    found = ordered(replace(PART, layer=1), Places(source.read(file), "vllm"), (), dual=True)
    edited = [one.edit.after.strip() for one in found if one.edit and one.edit.after]
    assert edited == ["h = (layer.output[0] + layer.output[1])"]


def test_half_that_is_changed_is_right_where_transformers_changes_the_mlp(tmp_path):
    file = tmp_path / "mlp.py"
    code, _ = PROJECTED["a name, then a slice"]
    file.write_text(PROJECTED_ON_HF.format(read="mlp.output") + code)
    told = ordered(PART, Places(source.read(file), "vllm"), (), dual=True)
    assert all(one.kind != "half" for one in told)


def test_a_half_that_is_only_asked_for_its_form_is_no_value_of_the_write(tmp_path):
    file = tmp_path / "form.py"
    code = """\
        h = layer.output[0]
        layer.output[0][:] += d.to(h.dtype)
"""
    file.write_text(PROJECTED_ON_HF.format(read="output") + code)
    told = ordered(PART, Places(source.read(file), "vllm"), (), dual=True)
    assert all(one.kind != "half" for one in told)

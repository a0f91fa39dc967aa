"""The names that a write, or a value, is made with, where `hf` makes one of them otherwise."""

import pytest

from conformance.check.advice.unlike_names import unlike_names
from conformance.check.advice.writes.causes import ordered
from conformance.check.advice.writes.write_edits import counterpart, write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting

HEADS = """\
def hf(model):
    size = model.config.hidden_size // model.config.num_attention_heads
    found = {}
    for head in range(3):
        cols = slice(head * size, (head + 1) * size)
        with model.trace("a"):
            z = model.model.layers[1].self_attn.o_proj.input
            z[:, -1, cols] = z[:, :, cols].mean(dim=1)
            found[head] = model.lm_head.output[0, -1].save()
    return {"found": found}


def vllm(model):
    size = model.config.hidden_size // model.config.num_attention_heads
    found = {}
    for head in range(3):
        cols = slice(head * size, (head + 1) * size)
        with model.trace("a", temperature=0.0, max_tokens=1):
            z = model.model.layers[1].self_attn.o_proj.input
            z[-1, cols] = z[:, cols].mean(dim=0)
            found[head] = model.logits[-1].save()
    return {"found": found}
"""

STEERED = """\
import torch


def difference(rows, layer):
    return rows[:3, layer].mean(dim=0) - rows[3:, layer].mean(dim=0)


def hf(model):
    middle = len(model.model.layers) // 2
    with model.trace(["a", "b"]):
        rows = torch.stack([one.output[:, -1] for one in model.model.layers], dim=1).save()
    direction = difference(rows, middle)
    with model.trace("c"):
        for layer in model.model.layers:
            layer.output[:] = layer.output - direction
        logits = model.lm_head.output[0, -1].save()
    return {"logits": logits}


def vllm(model):
    middle = len(model.model.layers) // 2
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        kept = {}.save()
        for number, prompt in enumerate(["a", "b"]):
            with tracer.invoke(prompt):
                ends = [(one.output[0] + one.output[1])[-1] for one in model.model.layers]
                kept[number] = torch.stack(ends)
    rows = torch.stack([kept[number] for number in range(2)])
    direction = difference(rows, middle)
    with model.trace("c", temperature=0.0, max_tokens=1):
        for layer in model.model.layers:
            stream = layer.output[0] + layer.output[1]
            layer.output[0][:] = stream - direction
            layer.output[1][:] = 0
        logits = model.logits[-1].save()
    return {"logits": logits}
"""

EMBEDDED = """\
def tokens(tokenizer):
    return slice(2, len(tokenizer("ab")))


def hf(model):
    subject = tokens(model.tokenizer)
    last = subject.stop - 1
    with model.trace("a"):
        model.model.layers[1].output[:, last] = 0
        logits = model.lm_head.output[0, -1].save()
    return {"logits": logits}


def vllm(model):
    subject = tokens(model.tokenizer)
    last = subject.stop - 1
    with model.trace("a", temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        layer.output[0][last] = 0
        layer.output[1][last] = 0
        logits = model.logits[-1].save()
    return {"logits": logits}
"""


def written(tmp_path, text, instead):
    """The file with the second of equal lines changed, and its places on vLLM."""
    before, after = instead
    head, found, tail = text.rpartition(before) if before else (text, "", "")
    assert bool(found) == bool(before)
    path = tmp_path / "mine.py"
    path.write_text(head + after + tail)
    return Places(source.read(path), "vllm")


def made_otherwise(places, write):
    theirs = Places(places.file, "hf", dual=False)
    own = counterpart(places, theirs, write)
    begin = f"line {write.line} writes"
    return (
        [] if own is None else unlike_names(places, theirs, write.statement, own.statement, begin)
    )


CASES = [
    (HEADS, ("slice(head * size", "slice((head - 1) * size"), 17),
    (HEADS, ("(head + 1) * size)", "(head + 2) * size)"), 17),
    (HEADS, ("num_attention_heads", "num_key_value_heads"), 14),
    (HEADS, ("range(3)", "range(1, 4)"), 16),
    (STEERED, ("difference(rows, middle)", "difference(rows, middle - 1)"), 29),
    (STEERED, ("layers) // 2", "layers) // 3"), 21),
    (EMBEDDED, ("subject.stop - 1", "subject.stop"), 16),
]


@pytest.mark.parametrize(("text", "instead", "line"), CASES)
def test_the_line_that_makes_it_is_named_with_that_of_hf(tmp_path, text, instead, line):
    places = written(tmp_path, text, instead)
    write = places.writes()[0]
    [found] = made_otherwise(places, write)
    assert found.edit.line == line
    assert (
        f"line {write.line} writes with " in found.words and "`hf` has in its place" in found.words
    )
    loop = instead[0] == "range(3)"
    assert loop or found.edit.after.strip() == text.splitlines()[line - 1].strip()


@pytest.mark.parametrize("text", [HEADS, STEERED, EMBEDDED])
def test_what_differs_by_the_batch_axis_alone_is_right(tmp_path, text):
    places = written(tmp_path, text, ("", ""))
    assert [one for write in places.writes() for one in made_otherwise(places, write)] == []


@pytest.mark.parametrize(
    "instead",
    [
        ("kept[number] for number", "kept[1 - number] for number"),
        ("(one.output[0] + one.output[1])[-1]", "(one.output[0] + one.output[1])[-2]"),
    ],
)
def test_what_is_read_of_the_model_is_not_compared_as_text(tmp_path, instead):
    places = written(tmp_path, STEERED, instead)
    assert [one for write in places.writes() for one in made_otherwise(places, write)] == []


def test_it_is_said_where_nothing_else_explains_the_write(tmp_path):
    places = written(tmp_path, *CASES[0][:2])
    for kind in ("", "too-many"):
        first, second = ordered(Parting(1, 0, 0, (3,), 4, kind=kind, ran=4), places, (), dual=True)
        assert first.edit.line == 17 and second.words.startswith("so the layers differ")
    [dropped] = ordered(Parting(1, 0, 0, (3,), 4, kind="dropped", ran=4), places, (), dual=True)
    assert dropped.edit is None or dropped.edit.line != 17


@pytest.mark.parametrize("wrong", ["z[:-1, cols].mean(dim=0)", "z[:, cols].mean()"])
def test_a_write_that_is_another_one_becomes_that_of_hf(tmp_path, wrong):
    places = written(tmp_path, HEADS, ("z[:, cols].mean(dim=0)", wrong))
    edit = write_edit(places, Parting(1, 0, 0, (3,), 4, ran=4))
    assert (edit.line, edit.after.strip()) == (20, "z[-1, cols] = z[:, cols].mean(dim=0)")


def test_a_value_is_computed_with_another_name(tmp_path):
    text = """\
def hf(model):
    paris = model.tokenizer.encode(" Paris")[0]
    with model.trace("a"):
        logits = model.lm_head.output[0, -1]
        score = logits[paris].save()
    return {"score": score}


def vllm(model):
    paris = model.tokenizer.encode(" Paris")[0]
    with model.trace("a", temperature=0.0, max_tokens=1):
        logits = model.logits[-1]
        score = logits[paris].save()
    return {"score": score}
"""
    places = written(tmp_path, text, ('" Paris"', '"Paris"'))
    theirs = Places(places.file, "hf", dual=False)
    own, meant = places.made("score"), theirs.made("score")
    [found] = unlike_names(places, theirs, own, meant, "Line 13 computes it")
    assert found.edit.line == 10 and found.words.startswith(
        "Line 13 computes it with `paris` of line 10"
    )
    assert found.edit.after.strip() == 'paris = model.tokenizer.encode(" Paris")[0]'
    places = written(tmp_path, text, ("", ""))
    assert unlike_names(places, theirs, places.made("score"), meant, "") == []

"""Ports that keep a mapping of the prompts' own values where `hf` has a batch."""

import pytest

from conformance.check.advice.reads.unlike_lines import unlike_lines
from conformance.check.advice.unlike_names import unlike_names
from conformance.check.advice.writes.causes import ordered
from conformance.check.advice.writes.write_edits import counterpart
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting

FILE = """\
import torch

PROMPTS, LAYERS, SOURCE = ["a", "b"], (1, 2), 1


def hf(model):
    attention = model.model.layers[0].mlp
    lengths = [len(model.tokenizer(one)["input_ids"]) for one in PROMPTS]
    with model.trace(PROMPTS):
        x = model.model.layers[1].output.float()
        features = x[:, -1].topk(3).indices.save()
        errors = [].save()
        for i, n in enumerate(lengths):
            errors.append(x[i, -n:].pow(2).sum())
        clean = model.lm_head.output[:, -1].save()
    feature = int(features[SOURCE, 0])
    rows = {layer: [] for layer in LAYERS}
    for prompt in PROMPTS:
        with model.trace(prompt):
            last = {}.save()
            for layer in LAYERS:
                last[layer] = model.model.layers[layer].mlp.output[0, -1].clone()
        for layer in LAYERS:
            rows[layer].append(last[layer])
    rows = {layer: torch.stack(rows[layer]) for layer in LAYERS}
    with model.trace(PROMPTS):
        mlp = model.model.layers[2].mlp
        mlp.output[:, :, feature] = 0
        edited = model.lm_head.output[:, -1].save()
    return {
        "features": features, "errors": errors, "clean": clean, "edited": edited, "rows": rows,
    }


def vllm(model):
    attention = model.model.layers[0].mlp
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        features, errors, clean = {}.save(), {}.save(), {}.save()
        for i, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                layer = model.model.layers[1]
                x = (layer.output[0] + layer.output[1]).float()
                features[i] = x[-1].topk(3).indices
                errors[i] = x.pow(2).sum()
                clean[i] = model.logits[0].clone()
    feature = int(features[SOURCE][0])
    rows = {layer: [] for layer in LAYERS}
    for prompt in PROMPTS:
        with model.trace(prompt, temperature=0.0, max_tokens=1):
            last = {}.save()
            for layer in LAYERS:
                last[layer] = model.model.layers[layer].mlp.output[-1].clone()
        for layer in LAYERS:
            rows[layer].append(last[layer])
    rows = {layer: torch.stack(rows[layer]) for layer in LAYERS}
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        edited = {}.save()
        for i, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                mlp = model.model.layers[2].mlp
                mlp.output[:, feature] = 0
                edited[i] = model.logits[0].clone()
    return {
        "features": features, "errors": errors, "clean": clean, "edited": edited, "rows": rows,
    }
"""

NAMES = ("features", "errors", "clean", "edited", "rows")


def port(tmp_path, was="", now=""):
    head, found, tail = FILE.rpartition(was) if was else (FILE, "", "")
    assert bool(found) == bool(was)
    path = tmp_path / "mine.py"
    path.write_text(head + now + tail)
    return Places(source.read(path), "vllm", dual=True)


def names_of(places):
    theirs = Places(places.file, "hf", dual=False)
    [write] = places.writes()
    own = counterpart(places, theirs, write)
    return unlike_names(places, theirs, write.statement, own.statement, "it writes")


@pytest.mark.parametrize("name", NAMES)
def test_of_a_file_that_is_right_no_line_is_another_one(tmp_path, name):
    places = port(tmp_path)
    found = unlike_lines(places, name, [name], ())
    assert not [one for one in found if one.sure]
    assert not found or name == "features"  # which is made of a sum
    assert not names_of(places)


def test_an_entry_is_asked_of_a_mapping_as_of_a_batch(tmp_path):
    [found] = names_of(port(tmp_path, "features[SOURCE][0]", "features[0][0]"))
    assert found.edit.after.strip() == "feature = int(features[SOURCE][0])"


@pytest.mark.parametrize(
    ("name", "was", "now"),
    [
        ("errors", "x.pow(2).sum()", "x.abs().sum()"),
        ("rows", "mlp.output[-1].clone()", "mlp.output[0].clone()"),
    ],
)
def test_an_entry_that_is_made_otherwise_is_shown(tmp_path, name, was, now):
    right = FILE.splitlines()
    [found] = unlike_lines(port(tmp_path, was, now), name, [name], ())
    assert found.sure and right[found.edit.line - 1].strip().endswith(was)


def test_a_module_that_hf_names_in_the_same_line_is_none_to_mend(tmp_path):
    places = port(
        tmp_path,
        "                mlp.output[:, feature]",
        "                attention.output[:, feature]",
    )
    told = ordered(Parting(0, 0, 0, (3,), 4, own=0, ran=6), places, [], dual=True)
    assert [one.edit.line for one in told if one.edit] == [places.writes()[0].line]

"""The write is right, and what it writes is read elsewhere than in `hf`: that line is the cause."""

import pytest
import torch

from conformance.check.advice import findings
from conformance.check.advice.reads.other_sources import other_reads
from conformance.check.advice.writes.causes import ordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.judge.judgement import Judgement
from conformance.records import Judged, Site, Verdict

PART = Parting(2, 0, 0, (0, 1, 2, 3), 4, words="another change is made")

HF = """\
def hf(model):
    at = len(model.model.layers) // 2
    with model.trace("a"):
        love = model.model.layers[at].output.float().mean(dim=1)[0].save()
    with model.trace("b"):
        hate = model.model.layers[at].output.float().mean(dim=1)[0].save()
    vector = love - hate
    with model.trace("c"):
        hidden = model.model.layers[at].output
        hidden[:] += vector.to(hidden.dtype)
        logits = model.lm_head.output.save()
    return {"logits": logits}

"""

VLLM = """\
def push(model, vector, at):
    with model.trace("c"):
        hidden = model.model.layers[at].output[0]
        hidden[:] += vector.to(hidden.dtype)
        logits = model.logits.save()
    return {"logits": logits}

def vllm(model):
    at = len(model.model.layers) // 2
    with model.trace("a"):
        layer = model.model.layers[AT]
        love = (layer.output[0] + layer.output[1]).float().mean(dim=0).save()
    with model.trace("b"):
        layer = model.model.layers[AT]
        hate = (layer.output[0] + layer.output[1]).float().mean(dim=0).save()
    return push(model, love - hate, at)
"""


def found(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(body)
    return ordered(PART, Places(source.read(path), "vllm"), [], dual=True)


@pytest.mark.parametrize("wrong", ["at - 1", "at + 1", "0"])
def test_a_read_of_another_layer_is_named_before_the_write(tmp_path, wrong):
    first, second, last = found(tmp_path, HF + VLLM.replace("AT", wrong))
    assert [one.edit.line for one in (first, second)] == [24, 27]
    assert first.edit.after.strip() == "layer = model.model.layers[at]"
    assert f"line 24 reads `model.model.layers[{wrong}]`, and line 4 of `hf`" in first.words
    assert last.words.startswith("so the layers differ since layer 2")


def test_the_same_reads_are_no_cause(tmp_path):
    [only] = found(tmp_path, HF + VLLM.replace("AT", "at"))
    assert only.words.startswith("the layers differ")
    assert "the value that it writes is another one" in only.words


def test_a_layer_that_a_name_here_does_not_have_is_shown_without_an_edit(tmp_path):
    body = VLLM.replace("vector, at)", "vector, place)").replace("layers[at]", "layers[place]")
    body = body.replace("    at = len(model.model.layers) // 2\n", "").replace(
        "hate, at", "hate, 2"
    )
    first, *_ = found(tmp_path, HF + body.replace("AT", "1"))
    assert (first.edit.line, first.edit.after) == (23, "")


READS = """\
def hf(model):
    with model.trace("a"):
        love = model.model.layers[LEFT].output[0, -1].clone().save()
    with model.trace("b"):
        hate = model.model.layers[RIGHT].output[0, -1].clone().save()
    return {"vector": love - hate}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=1):
        layer = model.model.layers[ONE]
        love = (layer.output[0] + layer.output[1])[-1].clone().save()
    with model.trace("b", temperature=0.0, max_tokens=1):
        hate = model.model.layers[OTHER].output
        hate = (hate[0] + hate[1])[-1].clone().save()
    return {"vector": love - hate}
"""


def ported(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(body)
    return Places(source.read(path), "vllm")


def reads(tmp_path, **layers):
    body = READS
    for name, layer in layers.items():
        body = body.replace(name, layer)
    return {
        one.edit.line: one.edit.after.strip()
        for one in other_reads(ported(tmp_path, body), "vector")
    }


FIRST, SECOND = "layer = model.model.layers[4]", "hate = model.model.layers[4].output"


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("5", "5", {11: FIRST, 14: SECOND}),
        ("4", "5", {14: SECOND}),
        ("5", "4", {11: FIRST}),
        ("4", "4", {}),
    ],
)
def test_what_is_returned_names_the_reads_of_another_layer(tmp_path, one, other, told):
    assert reads(tmp_path, LEFT="4", RIGHT="4", ONE=one, OTHER=other) == told


def test_reads_in_another_order_are_not_others(tmp_path):
    assert reads(tmp_path, LEFT="4", RIGHT="2", ONE="2", OTHER="4") == {}


def test_one_layer_under_two_names_is_one(tmp_path):
    body = READS.replace("LEFT", "AT").replace("RIGHT", "4").replace("ONE", "4")
    places = ported(tmp_path, "AT = 4\n\n\n" + body.replace("OTHER", "AT"))
    assert other_reads(places, "vector") == []


def test_a_layer_that_a_helper_is_given_is_named_at_the_call(tmp_path):
    body = """\
def taken(model, prompt, at):
    with model.trace(prompt):
        h = model.model.layers[at].output[0, -1].clone().save()
    return h


def there(model, prompt, at):
    with model.trace(prompt, temperature=0.0, max_tokens=1):
        layer = model.model.layers[at]
        h = (layer.output[0] + layer.output[1])[-1].clone().save()
    return h


def hf(model):
    return {"vector": taken(model, "a", 4) - taken(model, "b", at=4)}


def vllm(model):
    left = there(model, "a", 4)
    right = there(model, "b", at=5)
    return {"vector": left - right}
"""
    [found] = other_reads(ported(tmp_path, body), "vector")
    assert found.edit.line == 20
    assert found.words == (
        "line 20 reads `model.model.layers[5]`, and line 15 of `hf` `model.model.layers[4]`"
    )


def test_a_value_that_is_nothing_known_is_explained_by_its_reads(tmp_path):
    body = READS.replace("LEFT", "4").replace("RIGHT", "4").replace("ONE", "5")
    file = ported(tmp_path, body.replace("OTHER", "5")).file
    maker = torch.Generator().manual_seed(0)
    mine, truth = torch.randn(2, 16, generator=maker)
    seen = {"float32:truth|p0/s0/vector": truth}
    site = str(Site("vector"))
    judgement = Judgement(Verdict.WRONG, "", (Judged(site, Verdict.WRONG, "9 × noise"),))
    told = findings.findings(file, seen, {site: mine}, judgement, "model.layers", dual=True)
    assert [(one.kind, one.name, one.edit.line) for one in told] == [
        ("other-value", "vector", 11),
        ("other-value", "vector", 14),
    ]
    words = "line 11 reads `model.model.layers[5]`, and line 3 of `hf` `model.model.layers[4]`"
    assert told[0].words == f"`vector` differs: 9 × noise. It is made of another read: {words}"


MADE = """\
def hf(model):
    found = {}
    for name in ("a", "b"):
        with model.trace(name):
            h = model.model.norm(model.model.layers[1].output)[0]
            kl = (h * (h - h[-1])).sum(dim=-1).save()
            top = h.max(dim=-1).values.save()
        found[name] = {"kl": kl.cpu(), "top": top, "most": top.max() - kl}
    return found


def vllm(model):
    found = {}
    for name in ("a", "b"):
        with model.trace(name, temperature=0.0, max_tokens=1):
            h = model.model.norm(model.model.layers[1].output[0] + model.model.layers[1].output[1])
            kl = (h[-1] * (h[-1] - h)).sum(dim=-1).save()
            top = h.max(dim=-1).values.save()
        found[name] = {
            "kl": kl.cpu(),
            "top": top,
            "most": top.max() - kl,
        }
    return found
"""


MEANT = "kl = (h * (h - h[-1])).sum(dim=-1).save()"


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        (
            "a_kl",
            17,
            f"`a_kl` differs: 9 × noise. `hf` has in its place `{MEANT}`, line 6",
        ),
        ("b_top", 18, "`b_top` differs: 9 × noise"),
        ("b_most", 22, "`b_most` differs: 9 × noise"),
    ],
)
def test_a_value_that_is_nothing_known_is_shown_where_it_is_made(tmp_path, name, line, words):
    file = ported(tmp_path, MADE).file
    maker = torch.Generator().manual_seed(0)
    mine, truth = torch.randn(2, 16, generator=maker)
    site = str(Site(name))
    judgement = Judgement(Verdict.WRONG, "", (Judged(site, Verdict.WRONG, "9 × noise"),))
    seen = {f"float32:truth|{site}": truth}
    [told] = findings.findings(file, seen, {site: mine}, judgement, "model.layers", dual=True)
    assert (told.kind, told.edit.line, told.edit.after) == ("unknown", line, "")
    assert told.words == words

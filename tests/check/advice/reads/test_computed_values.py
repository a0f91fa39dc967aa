"""What a function computes itself of values that are right: the line at which the texts part."""

import pytest
import torch

from conformance.check.advice import findings
from conformance.check.advice.finding import Finding
from conformance.check.advice.reads.computed_values import computed
from conformance.check.advice.writes.causes import ordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.judge.cell import Judgement
from conformance.records import Judged, Site, Verdict

FILE = """\
WORDS = (" a", " b")


def ids(model):
    return [model.tokenizer(word)[0] for word in WORDS]


def hf(model):
    right, wrong = ids(model)
    with model.trace("a"):
        first = model.model.layers[2].mlp.down_proj.input[0, -1].clone().save()
        before = model.lm_head.output[:, -1].clone().save()
    top = first.abs().topk(5).indices
    with model.trace("a"):
        model.model.layers[2].mlp.down_proj.input[:, :, top] = 0
        after = model.lm_head.output[:, -1].clone().save()
    return {
        "first": first,
        "top": top,
        "before": before,
        "after": after,
        "difference": before[0, right] - before[0, wrong],
    }


def vllm(model):
    right, wrong = ids(model)
    with model.trace("a", temperature=0.0, max_tokens=1):
        first = model.model.layers[2].mlp.down_proj.input[-1].clone().save()
        before = model.logits.clone().save()
    top = first.abs().topk(5).indices
    with model.trace("a", temperature=0.0, max_tokens=1):
        model.model.layers[2].mlp.down_proj.input[:, top] = 0
        after = model.logits.clone().save()
    return {
        "first": first,
        "top": top,
        "before": before,
        "after": after,
        "difference": before[0, right] - before[0, wrong],
    }
"""

#: What is written otherwise in `vllm`, which name is off then, the line, and that line mended.
MISTAKES = {
    "another computation": (
        ("first.abs().topk", "first.topk"),
        "top",
        (31, "top = first.abs().topk(5).indices"),
    ),
    "another name in it": (
        ("ids(model)", "[model.tokenizer(word.strip())[0] for word in WORDS]"),
        "difference",
        (27, "right, wrong = ids(model)"),
    ),
    "another variable": (('"after": after', '"after": before'), "after", (39, '"after": after,')),
    "an expression of its own": (
        ("before[0, right] - before[0, wrong]", "before[0, wrong] - before[0, right]"),
        "difference",
        (40, '"difference": before[0, right] - before[0, wrong],'),
    ),
    "a name that is not there": (
        ("right, wrong = ids(model)", "good, bad = ids(model)[::-1]"),
        "difference",
        (40, ""),
    ),
}


def port(tmp_path, *change):
    begin, own, end = FILE.partition("def vllm")
    if change:
        end = end.replace(*change)
    if change and change[1].startswith("good"):
        end = end.replace("[0, right]", "[0, good]").replace("[0, wrong]", "[0, bad]")
    path = tmp_path / "mine.py"
    path.write_text(begin + own + end)
    return Places(source.read(path), "vllm")


@pytest.mark.parametrize("name", MISTAKES)
def test_the_line_is_named_at_which_a_computation_from_right_values_parts(tmp_path, name):
    change, value, (line, after) = MISTAKES[name]
    told = computed(port(tmp_path, *change), value, {"first", "before"})
    assert (told.edit.line, told.edit.after.strip()) == (line, after)


@pytest.mark.parametrize(
    ("name", "right"),
    [("top", {"before"}), ("difference", {"first", "top"}), ("after", {"first"}), ("first", {})],
)
def test_what_is_computed_from_values_that_are_not_known_to_be_right_is_not(tmp_path, name, right):
    changed = port(tmp_path, "first.abs().topk", "first.topk")
    assert computed(changed, name, right) is None


def test_of_equal_texts_what_is_not_returned_is_named(tmp_path):
    assert computed(port(tmp_path), "top", {"first", "before"}) is None
    told = computed(port(tmp_path), "difference", {"first", "before"})
    assert told.words == (
        "`before`, which it is computed from, is right: look at `right` and `wrong`, line 27, "
        "which are not returned"
    )
    assert (told.edit.line, told.edit.after) == (27, "")


LOOPED = """\
def {name}(model):
    diffs = []
    for layer in (1, 2):
        with model.trace("a"):
            one = model.model.layers[layer].mlp.output.sum().save()
        diffs.append({put})
    total = sum(diffs)
    return {{"first": first, "diffs": diffs, "total": total}}


"""


@pytest.mark.parametrize("name", ["diffs", "total"])
def test_what_is_put_into_a_list_is_told_and_a_list_that_is_returned_is_not_looked_at(
    tmp_path, name
):
    path = tmp_path / "looped.py"
    first = '    with model.trace("b"):\n        first = model.model.layers[0].mlp.output.save()\n'
    halves = [
        LOOPED.format(name=each, put=put).replace(":\n", f":\n{first}", 1)
        for each, put in (("hf", "one"), ("vllm", "first"))
    ]
    path.write_text("".join(halves))
    places = Places(source.read(path), "vllm")
    told = computed(places, name, {"first"})
    assert "line 20 computes something else. `hf` has `one`, line 8" in told.words
    assert told.edit.after.strip() == "diffs.append(one)"
    path.write_text("".join(halves).replace("append(one)", "append(first)"))
    assert computed(Places(source.read(path), "vllm"), name, {"first"}) is None


def test_of_a_list_that_is_not_returned_what_is_put_into_it_is_looked_at(tmp_path):
    path = tmp_path / "beside.py"
    body = "    more = []\n    more.append(other)\n    x = first + sum(more)\n"
    start = "(model):\n    with model.trace('a'):\n        first = model.logits.save()\n"
    end = "    return {'first': first, 'x': x}\n\n\n"
    path.write_text("".join(f"def {name}{start}{body}{end}" for name in ("hf", "vllm")))
    told = computed(Places(source.read(path), "vllm"), "x", {"first"})
    assert "look at `more`, line 14" in told.words


def test_every_value_that_is_computed_otherwise_is_told(tmp_path):
    change, _, (line, after) = MISTAKES["another name in it"]
    file = port(tmp_path, *change).file
    maker = torch.Generator().manual_seed(0)
    same, mine, truth = torch.randn(3, 2, 16, generator=maker)
    names = {"before": same, "first": same, "difference": mine}
    seen = {
        f"float32:truth|{Site(name)}": same if value is same else truth
        for name, value in names.items()
    }
    judged = tuple(
        Judged(str(Site(name)), Verdict.MATCH if value is same else Verdict.WRONG, "9 × noise")
        for name, value in names.items()
    )
    ours = {str(Site(name)): value for name, value in names.items()}
    judgement = Judgement(Verdict.WRONG, "", judged)
    [told] = findings.findings(file, seen, ours, judgement, "model.layers", dual=True)
    assert (told.kind, told.edit.line, told.edit.after.strip()) == ("computed", line, after)
    assert "`before`, which it is computed from, is right" in told.words


def test_a_part_of_the_model_is_not_suggested_as_hf_has_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def hf(model):\n"
        "    x = read(model)\n"
        "    return {'x': x, 'y': model.lm_head(x)}\n"
        "def vllm(model):\n"
        "    x = read(model)\n"
        "    return {'x': x, 'y': x @ W}\n"
    )
    told = computed(Places(source.read(path), "vllm"), "y", {"x"})
    assert (told.edit.line, told.edit.after) == (6, "") and "`model.lm_head(x)`" in told.words


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("{f'h{n}': x for n, x in enumerate(kept)}", "{f'h{n}': h for n, h in enumerate(kept)}"),
        ("{'h0': kept, 'h1': kept}", "pack(kept)"),
    ],
)
def test_values_whose_keys_are_computed_are_not_told_from_each_other(tmp_path, theirs, ours):
    path = tmp_path / "mine.py"
    path.write_text(
        "from helpers import pack\n\n\n"
        "def hf(model):\n"
        "    kept = read(model)\n"
        f"    return {theirs}\n\n\n"
        "def vllm(model):\n"
        "    kept = read(model)\n"
        f"    out = {ours}\n"
        "    return out\n"
    )
    assert computed(Places(source.read(path), "vllm"), "h1", {"h0"}) is None


PART = Parting(2, 0, 1, (0, 1), 2, words="another change is made")


def test_what_says_where_a_write_goes_comes_before_it(tmp_path):
    changed = port(tmp_path, "first.abs().topk", "first.topk")
    made = computed(changed, "top", {"first"})
    own = Finding("computed", "`top` differs", "top", edit=made.edit)
    first, second = ordered(PART, changed, [own], dual=True)
    assert first == own and second.words.startswith("so ") and second.edit is None


def test_a_read_of_another_layer_that_says_where_a_write_goes_is_its_cause(tmp_path):
    changed = port(
        tmp_path, "layers[2].mlp.down_proj.input[-1]", "layers[1].mlp.down_proj.input[-1]"
    )
    read = Finding("input", "`first` holds layer 1", "first")
    [line] = [one.line for one in changed.reads("first")]
    shown = Finding("input", read.words, "first", edit=made_at(changed, line))
    told = ordered(PART, changed, [shown], dual=True)
    assert told[0].words == read.words and len(told) == 2
    assert told[0].edit.after.strip().startswith("first = model.model.layers[2]")


def made_at(places, line):
    return findings.Edit(line, places.file.line(line))


def test_a_value_of_which_nothing_is_known_but_that_a_write_uses_it_comes_before_it(tmp_path):
    changed = port(tmp_path, "first.abs().topk", "first.topk")
    unknown = {"top": Finding("unknown", "`top` differs: 5 of 5 integers", "top")}
    first, second = ordered(PART, changed, [], dual=True, unknown=unknown)
    assert first.edit.line == 31 and "Line 33 writes with it" in first.words
    assert "in the place of line 31 `top = first.abs().topk(5).indices`, line 13" in first.words
    assert first.edit.after.strip() == "top = first.abs().topk(5).indices"
    assert second.words.startswith("so the layers differ")
    # What comes of the write is none of its causes.
    follows = {"after": Finding("unknown", "`after` differs", "after")}
    [write] = ordered(PART, changed, [], dual=True, unknown=follows)
    assert write.words.startswith("the layers differ")


def test_what_comes_of_an_earlier_write_is_no_cause_of_a_later_one(tmp_path):
    changed = port(tmp_path, "first.abs().topk", "first.topk")
    text = changed.file.text.replace(
        "        before = model.logits",
        "        model.model.layers[2].mlp.output[-1] = 0\n        before = model.logits",
    )
    (tmp_path / "mine.py").write_text(text)
    changed = Places(source.read(tmp_path / "mine.py"), "vllm")
    unknown = {"top": Finding("unknown", "`top` differs: 5 of 5 integers", "top")}
    [write] = ordered(PART, changed, [], dual=True, unknown=unknown)
    assert write.words.startswith("the layers differ")


STEERED = """\
def {name}(model):
    with model.trace("a"):
        a = model.model.layers[0].mlp.output[{at}].clone().save()
    vector = {made}
    with model.trace("b"):
        model.model.layers[1].output{half}[:] += vector
        x = model.lm_head.output.save()
    return {{"vector": vector, "x": x}}


"""


def test_a_vector_of_another_sign_is_told_before_the_write_that_uses_it(tmp_path):
    """A value that is a multiple of the right one follows from a write but where it comes before
    all of them.
    """
    path = tmp_path / "steered.py"
    hf = STEERED.format(name="hf", at=":, -1", made="a - 1", half="")
    path.write_text(hf + STEERED.format(name="vllm", at="-1", made="1 - a", half="[0]"))
    maker = torch.Generator().manual_seed(0)
    clean, vector, x = (torch.randn(3, 16, generator=maker) for _ in range(3))
    vector = vector[0]
    site = {name: str(Site(name)) for name in ("vector", "x")}
    seen = {
        f"float32:truth|{site['vector']}": vector,
        f"float32:truth|{site['x']}": x,
        "layers|p0/s0/ids": torch.tensor([1, 2, 3]),
        "layers|p0/s0/stream.1": clean + vector,
        "clean|p0/s0/stream.1": clean,
    }
    mine = {
        site["vector"]: -vector,
        site["x"]: x.flip(0),
        "layers|p0/s0/ids": torch.tensor([1, 2, 3]),
        "layers|p0/s0/stream.1": clean - vector,
    }
    judged = tuple(Judged(one, Verdict.WRONG, "9 × noise") for one in site.values())
    judgement = Judgement(Verdict.WRONG, "", judged)
    first, write = findings.findings(
        source.read(path), seen, mine, judgement, "model.layers", dual=True
    )
    assert first.words.startswith("`vector` is -1 times what it is on transformers")
    assert "Line 16 writes with it, and `hf` has in the place of line 14" in first.words
    assert first.edit.after.strip() == "vector = a - 1"
    assert write.words.startswith("so the layers differ") and "-1 times" in write.words

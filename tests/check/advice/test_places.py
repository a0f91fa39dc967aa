"""The line of the user's file, and the edit that mends it."""

import pytest

from conformance.check.advice.edits import layer_edit, read_edit, suspect, token_edit
from conformance.check.advice.errors import failures
from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.check.values.identify import Held
from conformance.records import Outcome, Status

FILE = """\
LAYER = 3

def hf(model):
    return {}

def vllm(model):
    hidden = []
    with model.trace("x", temperature=0.0):
        target = model.model.layers[LAYER]
        target.output[0][:] = 0
        half = model.model.layers[2].output[0].clone().save()
        for layer in model.model.layers:
            hidden.append(layer.output[1].clone())
        last = model.model.layers[1].output[0][-1].save()
    kept = last * 2
    return {"half": half, "all": hidden, "last one": kept}
"""


@pytest.fixture
def places(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(FILE)
    return Places(source.read(path), "vllm")


def test_a_value_comes_from_the_line_that_reads_it(places):
    assert places.origin("half").lineno == 11
    assert places.origin("all").lineno == 13
    assert places.origin("last_one").lineno == 14
    assert places.origin("absent") is None


def test_half_of_a_stream_is_mended_by_the_sum(places):
    edit = read_edit(places, "half", Held("mlp", "the MLP output", 2))
    assert edit.line == 11
    assert edit.after.strip() == (
        "half = (model.model.layers[2].output[0] + model.model.layers[2].output[1]).clone().save()"
    )


def test_a_neighbouring_layer_is_mended_by_its_number(places):
    edit = layer_edit(places, "half", 1)
    assert "layers[3].output[0]" in edit.after


def test_a_write_is_found_by_its_layer_through_names(places):
    [write] = places.writes()
    assert (write.line, write.layer, write.index) == (10, 3, 0)
    edit = write_edit(places, Parting(3, 0, 0, (0,), 1, "first-half"))
    assert edit.line == 10
    assert [line.strip() for line in edit.after.splitlines()] == [
        "target.output[0][:] = 0",
        "target.output[1][:] = 0",
    ]


MORE = """\
def vllm(model):
    with model.trace("x", temperature=0.0):
        mlp = model.model.layers[1].mlp.output
        mlp = mlp * 0
        qkv = model.model.layers[2].self_attn.qkv_proj.output[0]
        key = qkv[:, 8:16].clone().save()
        layer = model.model.layers[3]
        last = (layer.output[0] + layer.output[1])[-2].save()
        lens = (model.model.layers[2].output[0] @ model.lm_head.weight.T).save()
    return {"key": key, "last": last, "lens": lens}


def hf(model):
    return {}
"""


@pytest.fixture
def more(tmp_path):
    path = tmp_path / "more.py"
    path.write_text(MORE)
    return Places(source.read(path), "vllm")


def test_a_value_that_goes_nowhere_is_the_line_of_a_write_without_effect(more):
    assert write_edit(more, Parting(1, 0, 0, (0,), 1, "dropped")).line == 4


@pytest.mark.parametrize(
    ("made", "put_back"),
    [
        (
            "mlp, residual = model.model.layers[1].output; stream = mlp + residual",
            "stream - model.model.layers[1].output[1], model.model.layers[1].output[1]",
        ),
        ("stream = model.model.layers[1].output[0] * 1", "stream, model.model.layers[1].output[1]"),
        ("stream = model.model.layers[1].output[1] * 1", "model.model.layers[1].output[0], stream"),
    ],
)
def test_what_is_added_to_a_copy_is_put_back_where_it_was_taken(tmp_path, made, put_back):
    path = tmp_path / "lost.py"
    path.write_text(
        "def vllm(model):\n"
        '    with model.trace("a"):\n'
        f"        {made}\n"
        "        stream += 1\n"
        "        last = model.model.layers[3].output[0].save()\n"
        '    return {"last": last}\n'
        "def hf(model):\n"
        "    return {}\n"
    )
    edit = write_edit(Places(source.read(path), "vllm"), Parting(1, 0, 0, (0,), 1, "dropped"))
    assert edit.line == 4
    assert edit.after.endswith(f"\n        model.model.layers[1].output = ({put_back})")


def test_columns_of_a_merged_projection_are_taken_where_they_are_cut(more):
    assert read_edit(more, "key", Held("self_attn.v_proj", "the output of v_proj", 2)).line == 6


def test_another_token_is_mended_by_its_number(more):
    stream = "the residual stream after layer 3"
    held = Held("stream", stream, 3, "token 4", at=(4, 6))
    meant = Held("stream", stream, 3, "the last token", at=(5, 6))
    edit = read_edit(more, "last", held, meant)
    assert edit.line == 8 and "[-1].save()" in edit.after


def test_what_is_computed_from_half_of_a_stream_is_suspected_and_a_sum_is_not(more):
    assert suspect(more, "last") is None
    edit = suspect(more, "lens")
    assert edit.line == 9 and "(model.model.layers[2].output[0] + model" in edit.after


def test_what_is_filled_in_a_block_and_made_outside_is_empty_there(tmp_path):
    path = tmp_path / "filled.py"
    path.write_text(
        "def trace(lm):\n"
        "    seen = {}\n"
        '    with lm.trace("a"):\n'
        "        seen[1] = lm.layers[1].stream.save()\n"
        '    return {"stream": seen}\n'
    )
    file = source.read(path)
    [finding] = failures.emptied(file, "trace", {"stream": "stream"}).findings
    assert (finding.kind, finding.edit.line) == ("unsaved", 2)
    assert finding.edit.before.splitlines() == ["    seen = {}", '    with lm.trace("a"):']
    assert finding.edit.after.splitlines() == [
        '    with lm.trace("a"):',
        "        seen = {}.save()",
    ]
    assert finding.words.endswith("line 2 makes it outside")
    assert failures.emptied(file, "trace", {"other": "other"}) is None


def test_what_two_names_are_given_at_once_is_filled_too(tmp_path):
    path = tmp_path / "filled.py"
    path.write_text(
        "def trace(lm):\n"
        "    streams, logits = [], []\n"
        '    with lm.trace("a"):\n'
        "        streams.append(lm.layers[1].stream.save())\n"
        "        logits.append(lm.logits.save())\n"
        '    return {"streams": streams, "logits": logits}\n'
    )
    places = Places(source.read(path), "trace")
    for name in ("streams", "logits"):
        filled = places.filled(name)
        assert (filled.made, filled.there) == (2, f"{name} = [].save()")
        line, before, after = places.made_there(filled)
        assert (line, before.splitlines()[0]) == (2, "    streams, logits = [], []")
        assert after.splitlines() == [
            '    with lm.trace("a"):',
            "        streams = [].save()",
            "        logits = [].save()",
        ]


@pytest.mark.parametrize(
    ("made", "head"),
    [
        ("    seen = {}\n    n = 2\n", '    with lm.trace("a"):\n'),
        ("    seen, n = {}, 2\n", '    with lm.trace("a"):\n'),
        ("    seen = {}\n    n = 2\n", '    with lm.trace(\n        "a"\n    ):\n'),
    ],
)
def test_what_is_not_made_right_above_its_block_is_made_on_its_first_line(tmp_path, made, head):
    """So that nothing is said twice where the lines are changed as they are shown."""
    path = tmp_path / "filled.py"
    fills = "        seen[n] = lm.layers[1].stream.save()\n"
    path.write_text(f"def trace(lm):\n{made}{head}{fills}    return {{'stream': seen}}\n")
    [finding] = failures.emptied(source.read(path), "trace", {"stream": "stream"}).findings
    assert finding.edit.before == fills.rstrip("\n")
    assert finding.edit.after == f"        seen = {{}}.save()\n{fills}".rstrip("\n")
    assert path.read_text().splitlines()[finding.edit.line - 1] == finding.edit.before


PROMPTS = """\
def vllm(model):
    seen, other = {made}
    with model.trace() as tracer:
        n = 2
        for i, prompt in enumerate(["a", "b"]):
            with tracer.invoke(prompt):
                {fills}
    rows = seen[0]
    return {{"rows": rows}}
def hf(model):
    return {{}}
"""


def emptied(folder, text, line):
    """What is told where this line finds nothing."""
    path = folder / "port.py"
    path.write_text(text)
    file = source.read(path)
    detail = f'  File "{path}", line {line}, in x\n    {file.line(line).strip()}\n'
    outcome = Outcome(Status.ERROR, 0.1, "KeyError: 0", detail)
    told = failures.explain(failures.Failed(outcome, file, "vllm", there=True))
    [finding] = told.findings
    return told.words, finding.edit


@pytest.mark.parametrize(
    ("made", "fills", "after"),
    [
        ("{}, {}", "seen[i] = other[i] = 1", ["seen = {}.save()", "other = {}.save()"]),
        ("[None] * 2, {}", "seen[i] = 1", ["seen = ([None] * 2).save()"]),
        ("{}, 2", "seen.setdefault(i, []).append(1)", ["seen = {}.save()"]),
        ("{}, 2", "seen.update({i: 1})", ["seen = {}.save()"]),
    ],
)
def test_what_the_prompts_of_a_trace_fill_is_made_in_its_block(tmp_path, made, fills, after):
    words, edit = emptied(tmp_path, PROMPTS.format(made=made, fills=fills), 8)
    assert words.endswith("and saved: line 2 makes it outside (KeyError: 0)")
    lines = [one.strip() for one in edit.after.splitlines()]
    assert [one for one in lines if one.endswith(".save()")] == after


@pytest.mark.parametrize(
    ("made", "fills"),
    [
        ("[], []", "seen.append(1)"),
        ("[[] for _ in range(2)], 2", "seen[i].append(1)"),
        ("{'a': {}}, 2", "seen['a'][i] = 1"),
    ],
)
def test_what_prompts_fill_together_is_to_be_a_dict_of_their_trace(tmp_path, made, fills):
    """Of the lists within a list, or of one that all append to, one prompt's entries come home."""
    words, edit = emptied(tmp_path, PROMPTS.format(made=made, fills=fills), 8)
    assert "`seen = {}.save()`, and put each prompt's values at a key of its own" in words
    assert (edit.line, edit.after) == (2, "")


def test_lists_in_a_dict_that_trace_after_trace_fills_are_told_before_others(tmp_path):
    text = """\
def vllm(model):
    first, seen = {}, {n: [] for n in range(2)}
    for prompt in ("a", "b"):
        with model.trace(prompt):
            first[prompt] = 1
            seen[n].append(2)
    rows = {n: max(seen[n]) for n in range(2)}
    return {"rows": rows, "first": first}
def hf(model):
    return {}
"""
    words, edit = emptied(tmp_path, text, 7)
    assert words.startswith("`seen` does not come back whole")
    assert "in the block of line 4" in words and "add it to `seen` after the block" in words
    assert (edit.line, edit.after) == (2, "")


def test_a_value_of_another_invoke_is_said_to_be_that(tmp_path):
    path = tmp_path / "crossing.py"
    path.write_text(
        "def trace(lm):\n"
        "    with lm.trace() as tracer:\n"
        '        with tracer.invoke("a"):\n'
        "            h = lm.layers[1].stream.save()\n"
        '        with tracer.invoke("b"):\n'
        "            lm.layers[1].stream = h\n"
        "            logits = lm.logits.save()\n"
        '    return {"logits": logits}\n'
    )
    file = source.read(path)
    outcome = Outcome(Status.ERROR, 0.1, "NameError: name 'h' is not defined")
    told = failures.explain(failures.Failed(outcome, file, "trace"))
    assert "made in one invoke (line 4) and used in another" in told.words
    assert told.findings[0].edit.line == 6
    assert Places(file, "trace").used_in_another_invoke("logits") is None


def test_the_line_of_an_index_is_shown_and_not_that_of_its_statement(tmp_path):
    path = tmp_path / "wide.py"
    path.write_text(
        "def vllm(model):\n"
        '    with model.trace("a"):\n'
        "        head = (\n"
        "            model.model.layers[1].self_attn.o_proj.input[:, 8:16].clone().save()\n"
        "        )\n"
        '    return {"head": head}\n'
        "def hf(model):\n"
        "    return {}\n"
    )
    held = Held("x", "a value", 1, columns="columns 8 to 15")
    assert read_edit(Places(source.read(path), "vllm"), "head", held).line == 4


@pytest.mark.parametrize(
    ("index", "after"), [("[0, 64:128]", "z[:, 64:128] = 0"), ("[0]", "z[:] = 0")]
)
def test_a_write_that_takes_a_token_for_the_batch_reaches_all_of_them(tmp_path, index, after):
    path = tmp_path / "head.py"
    path.write_text(
        "def vllm(model):\n"
        '    with model.trace("a"):\n'
        "        z = model.model.layers[1].self_attn.o_proj.input\n"
        f"        z{index} = 0\n"
        "    return {}\n"
        "def hf(model):\n"
        "    return {}\n"
    )
    places = Places(source.read(path), "vllm")
    edit = write_edit(places, Parting(1, 0, 0, (1, 2, 3), 4, "partial"))
    assert (edit.line, edit.after.strip()) == (4, after) and "no batch axis" in edit.why
    other = write_edit(places, Parting(1, 0, 0, (0, 1), 4, "partial"))
    assert other.after == ""


def test_a_sum_that_is_written_to_is_put_back(tmp_path):
    path = tmp_path / "sum.py"
    path.write_text(
        "def vllm(model):\n"
        '    with model.trace("a"):\n'
        "        layer = model.model.layers[2]\n"
        "        h = layer.output[0] + layer.output[1]\n"
        "        h[-1] += 4\n"
        "    return {}\n"
        "def hf(model):\n"
        "    return {}\n"
    )
    edit = write_edit(Places(source.read(path), "vllm"), Parting(2, 0, 0, (3,), 4, "dropped"))
    assert edit.line == 5
    assert [line.strip() for line in edit.after.splitlines()] == [
        "h[-1] += 4",
        "layer.output = (h - layer.output[1], layer.output[1])",
    ]


@pytest.mark.parametrize(
    ("theirs", "ours", "line"),
    [
        ("h[:, -1] @ V", "(h @ V)[0]", 5),
        ("h[:, -1] @ V", "(h @ V)[0, :]", 5),
        ("h[:, 0] @ V", "(h @ V)[0]", None),
        ("h[:, -1] @ V", "(h @ V)[-1]", None),
        ("h[:, -1] @ V", "h @ V", None),
    ],
)
def test_a_value_of_token_0_that_should_be_anothers_is_shown(tmp_path, theirs, ours, line):
    path = tmp_path / "probe.py"
    path.write_text(
        "def vllm(model):\n"
        '    with model.trace("a"):\n'
        "        scores = [None].save()\n"
        "        h = model.model.layers[2].output[0] + model.model.layers[2].output[1]\n"
        f"        scores[0] = {ours}\n"
        '    return {"scores": scores}\n'
        "def hf(model):\n"
        '    with model.trace("a"):\n'
        "        h = model.model.layers[2].output\n"
        f"        scores = ({theirs}).save()\n"
        '    return {"scores": scores}\n'
    )
    edit = token_edit(Places(source.read(path), "vllm"), "scores")
    assert (edit and edit.line) == line


NEIGHBOUR = """\
HEAD, NEXT = slice(64, 128), slice(128, 192)


def hf(model):
    with model.trace("a"):
        {theirs}
    return {{}}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=1):
        z = model.model.layers[1].self_attn.o_proj.input
        {ours}
    return {{}}
"""


@pytest.mark.parametrize(
    ("theirs", "ours", "after"),
    [
        ("[:, :, HEAD] = 0", "[:, NEXT] = 0", "[:, HEAD] = 0"),
        ("[0, -1, HEAD] *= 2", "[0, HEAD] *= 2", "[-1, HEAD] *= 2"),
        # The same place: it is the value that is another one, and the whole line is hf's.
        ("[:, :, HEAD] = 0", "[:, HEAD] = 1", "[:, HEAD] = 0"),
    ],
)
def test_a_write_that_is_not_understood_stands_beside_that_of_transformers(
    tmp_path, theirs, ours, after
):
    path = tmp_path / "neighbour.py"
    module = "model.model.layers[1].self_attn.o_proj.input"
    for name, mended in (("z", f"z{after}"), (module, f"{module}{after}")):
        path.write_text(NEIGHBOUR.format(theirs=f"{module}{theirs}", ours=f"{name}{ours}"))
        edit = write_edit(Places(source.read(path), "vllm"), Parting(1, 0, 0, (0, 1), 2))
        assert edit.line == 13 and f"`{module}{theirs}`, line 6" in edit.why
        # In the same place the whole line becomes hf's, which names the module.
        same_place = ours.partition("]")[0] == after.partition("]")[0]
        assert edit.after.strip() == (f"{module}{after}" if same_place else mended)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("", ": the value that it writes is another one"),
        ("scaled", ": the value that it writes is another one"),
        ("other-tokens", ": the place that it writes is another one"),
        ("too-many", ": the place that it writes is another one"),
        ("dropped", ""),
    ],
)
def test_of_a_write_that_reads_as_that_of_hf_it_is_said_what_is_another_one(tmp_path, kind, words):
    path = tmp_path / "alike.py"
    write = "model.model.layers[1].self_attn.o_proj.input[:, NEXT] *= two"
    path.write_text(NEIGHBOUR.format(theirs=write.replace("[:,", "[:, :,"), ours=write))
    edit = write_edit(Places(source.read(path), "vllm"), Parting(1, 0, 0, (0, 1), 2, kind))
    assert edit.why == f"it reads as line 6 of `hf`{words}"


@pytest.mark.parametrize(
    ("kind", "gain", "pair", "after"),
    [
        ("first-half", 1.5, "(h * 1.5, r)", "(h * 1.5, r * 1.5)"),
        ("second-half", 0.5, "(h, 0.5 * r)", "(h * 0.5, 0.5 * r)"),
        ("first-half", None, "(new, r + 1)", "(new, (r + 1) * 0)"),
    ],
)
def test_a_pair_with_one_half_left_has_the_other_one_mended(tmp_path, kind, gain, pair, after):
    path = tmp_path / "pair.py"
    path.write_text(
        "def vllm(model):\n"
        '    with model.trace("a"):\n'
        "        h, r = model.model.layers[1].output\n"
        f"        model.model.layers[1].output = {pair}\n"
        "    return {}\n"
        "def hf(model):\n"
        "    return {}\n"
    )
    part = Parting(1, 0, 0, (0, 1), 2, kind, gain=gain)
    edit = write_edit(Places(source.read(path), "vllm"), part)
    assert edit.after.strip() == f"model.model.layers[1].output = {after}"


def test_a_value_in_a_mapping_that_a_helper_returns_comes_from_the_helper(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def run(lm, steer):\n"
        "    with lm.trace('a'):\n"
        "        tokens = lm.layers[2].stream.save()\n"
        "    return {'tokens': tokens}\n"
        "\n"
        "def trace(lm):\n"
        "    with lm.trace('b'):\n"
        "        other = lm.layers[1].stream.save()\n"
        "    kept = run(lm, other)\n"
        "    return {'other': other, 'plain': run(lm, other), 'kept': kept}\n"
    )
    places = Places(source.read(path), "trace")
    assert [places.origin(name).lineno for name in ("plain_tokens", "kept_tokens")] == [3, 3]
    assert places.origin("other").lineno == 8


SEVERAL = """\
def hf(model):
    return {}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=1):
        halves = {
            "first": model.model.layers[2].output[0].clone(),
            "second": model.model.layers[3].mlp.gate_up_proj.output[0].clone(),
        }.save()
        logits = model.logits.clone().save()
    return {
        **halves,
        "logits": logits,
        "difference": logits[0, 7] - logits[0, 9],
    }
"""


def test_what_a_tensor_is_asked_of_its_form_takes_no_part_of_a_value(tmp_path):
    path = tmp_path / "form.py"
    path.write_text(
        "def hf(model):\n"
        "    return {}\n"
        "def vllm(model):\n"
        '    with model.trace("a", temperature=0.0, max_tokens=1):\n'
        "        logits = model.logits.clone().save()\n"
        "    wide = logits[0].shape[-1]\n"
        "    kept = logits.reshape(wide)\n"
        "    rows = kept[3]\n"
        '    return {"kept": kept, "rows": rows}\n'
    )
    port = Places(source.read(path), "vllm")
    assert (port.cut("kept"), port.cut("rows")) == (None, 8)


def test_what_another_name_is_returned_as_is_no_part_of_a_value(tmp_path):
    path = tmp_path / "several.py"
    path.write_text(SEVERAL)
    port = Places(source.read(path), "vllm")
    lines = {name: read_edit(port, name, None).line for name in ("logits", "difference", "second")}
    assert lines == {"logits": 11, "difference": 15, "second": 9}
    assert [one.line for one in port.reads("second")] == [9]
    assert (
        layer_edit(port, "second", -1).after.strip().startswith('"second": model.model.layers[2]')
    )


def other_place(tmp_path, theirs, ours, kind=""):
    path = tmp_path / "elsewhere.py"
    path.write_text(
        "def hf(model):\n"
        "    top = [3, 4]\n"
        '    with model.trace("a"):\n'
        f"        model.model.layers[1].{theirs}\n"
        "    return {}\n"
        "def vllm(model):\n"
        "    top = [3, 4]\n"
        '    with model.trace("a", temperature=0.0, max_tokens=1):\n'
        "        layer = model.model.layers[1]\n"
        f"        layer.{ours}\n"
        "    return {}\n"
    )
    part = Parting(1, 0, 0, (0, 1, 2, 3), 5, kind)
    return write_edit(Places(source.read(path), "vllm"), part)


@pytest.mark.parametrize("kind", ["partial", "dropped"])
def test_a_write_in_its_own_place_is_no_copy_and_has_the_index_of_hf(tmp_path, kind):
    neurons = "mlp.down_proj.input[:, :, top] = 0", "mlp.down_proj.input[-1, top] = 0"
    edit = other_place(tmp_path, *neurons, kind)
    assert "copied" not in edit.why and "input[:, :, top] = 0`, line 4" in edit.why
    assert (edit.line, edit.after.strip()) == (10, "layer.mlp.down_proj.input[:, top] = 0")
    # What an index of numbers that are computed gives is a copy.
    edit = other_place(tmp_path, neurons[0], "mlp.down_proj.input[top][-1] = 0", kind)
    assert "copied first" in edit.why


@pytest.mark.parametrize(
    ("theirs", "ours", "words", "after"),
    [
        (
            "mlp.down_proj.input[:, :, top] = 0",
            "mlp.output[:, top] = 0",
            "it writes to `mlp.output`, and `hf` to `mlp.down_proj.input`",
            "model.model.layers[1].mlp.down_proj.input[:, top] = 0",
        ),
        (
            "mlp.down_proj.input[:, :, top] = 0",
            "mlp.down_proj.output[0][:, top] = 0",
            "it writes to `mlp.down_proj.output`, and `hf` to `mlp.down_proj.input`",
            "model.model.layers[1].mlp.down_proj.input[:, top] = 0",
        ),
        # Another value is written as well, or what it is there is another thing.
        ("mlp.output[:, -1] = 1", "mlp.down_proj.input[-1] = 2", "and `hf` to `mlp.output`", ""),
        ("output[:, -1] = 1", "mlp.output[-1] = 1", "and `hf` to `layers[1].output`", ""),
        ("mlp.up_proj.output[:] = 0", "mlp.gate_up_proj.output[0][:] = 0", "in its place", ""),
    ],
)
def test_a_write_to_another_module_is_said_to_be_that(tmp_path, theirs, ours, words, after):
    edit = other_place(tmp_path, theirs, ours)
    assert words in edit.why and edit.why.endswith("line 4")
    assert (edit.line, edit.after.strip()) == (10, after)


def test_a_layer_that_a_loop_gives_is_no_other_module(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(
        "def hf(model):\n"
        '    with model.trace("a"):\n'
        "        model.model.layers[1].output[:] = 0\n"
        "    return {}\n"
        "def vllm(model):\n"
        '    with model.trace("a", temperature=0.0, max_tokens=1):\n'
        "        for layer in model.model.layers[1:2]:\n"
        "            layer.output[0][:] = 0\n"
        "            layer.output[1][:] = 0\n"
        "    return {}\n"
    )
    edit = write_edit(Places(source.read(path), "vllm"), Parting(1, 0, 0, (0, 1), 2))
    assert "writes to" not in edit.why and not edit.after

"""A dict that one invoke fills and another uses: said in words, with a trace for each."""

import ast

import pytest

from conformance.check.advice.errors import failures
from conformance.check.parsing import source
from conformance.records import Outcome, Status

PORT = """\
def hf(model):
    return {}

def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        kept, seen = {}.save(), [].save()
        with tracer.invoke("a"):
            for i in (0, 1):
                kept[i] = model.model.layers[i].mlp.output[-1].clone()
        for i in (0, 1):
            with tracer.invoke("b"):
                model.model.layers[i].mlp.output[-1] = kept[i]  # the other's
                seen.append(model.logits.clone())
    return {"kept": kept, "seen": seen}
"""

APART = """\
    seen = []
    with model.trace('a', temperature=0.0, max_tokens=1):
        kept = {}.save()
        for i in (0, 1):
            kept[i] = model.model.layers[i].mlp.output[-1].clone()
    for i in (0, 1):
        with model.trace('b', temperature=0.0, max_tokens=1):
            model.model.layers[i].mlp.output[-1] = kept[i]  # the other's
            seen_value = (model.logits.clone()).save()
        seen.append(seen_value)"""


def told(tmp_path, text):
    path = tmp_path / "port.py"
    path.write_text(text)
    detail = (
        f'  File "{path}", line 12, in vllm\n    {text.splitlines()[11].strip()}\nKeyError: 0\n'
    )
    outcome = Outcome(Status.ERROR, reason="RuntimeError: KeyError: 0", detail=detail)
    return failures.explain(failures.Failed(outcome, source.read(path), "vllm", there=True))


def test_what_one_invoke_fills_and_another_uses_is_said_and_made_a_trace_for_each(tmp_path):
    said = told(tmp_path, PORT)
    [finding] = said.findings
    assert (finding.kind, finding.name, finding.edit.line) == ("crossing", "kept", 5)
    assert "in one invoke (line 9) and is used in another (line 12)" in said.words
    assert said.words.endswith("in place of lines 5 to 13 (RuntimeError: KeyError: 0)")
    assert finding.edit.after == APART
    lines = PORT.splitlines()
    ast.parse("\n".join([*lines[:4], APART, *lines[13:]]))


@pytest.mark.parametrize(
    "unlike",
    [
        ('invoke("b"):', 'invoke("b"), lock:'),
        ("seen.append(model.logits.clone())", "seen.extend(model.logits)"),
        ("  # the other's", "; tracer.barrier(2)()"),
    ],
)
def test_what_cannot_be_taken_apart_is_shown_where_it_is_used(tmp_path, unlike):
    [finding] = told(tmp_path, PORT.replace(*unlike)).findings
    assert (finding.kind, finding.edit.line, finding.edit.after) == ("crossing", 12, "")


def test_a_dict_that_each_invoke_uses_for_itself_does_not_cross(tmp_path):
    own = PORT.replace("= kept[i]", "= kept[i] = 0")
    assert told(tmp_path, own).findings[0].kind == "error"

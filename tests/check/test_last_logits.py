"""An index that takes a token of `model.logits`, of which vLLM has the last one's alone."""

import pytest

from conformance.check.advice.errors import failures
from conformance.check.parsing import source
from conformance.records import Outcome, Status

REASON = "IndexError: too many indices for tensor of dimension 2"

FILE = """\
def of(logits, word):
    return logits[:, -1, word]


def hf(model):
    with model.trace("a"):
        x = of(model.lm_head.output, 3).save()
    return {{"x": x}}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=1):
{lines}
    return {{"x": x}}
"""


def told(folder, *lines, number, there=True):
    path = folder / "port.py"
    path.write_text(FILE.format(lines="\n".join(f"        {line}" for line in lines)))
    file = source.read(path)
    detail = f'  File "{path}", line {number}, in x\n    {file.line(number).strip()}\n'
    outcome = Outcome(Status.ERROR, 0.1, REASON, detail)
    return failures.explain(failures.Failed(outcome, file, "vllm", there=there))


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        (["x = of(model.logits, 3).save()"], 13),
        (["all = model.logits.clone()", "x = of(all, 3).save()"], 13),
    ],
)
def test_in_a_helper_the_line_that_hands_the_logits_to_it_is_named(tmp_path, lines, taken):
    answer = told(tmp_path, *lines, number=2)
    assert "`model.logits` are the last token's" in answer.words
    assert f"Line {taken} hands them" in answer.words and "layer" not in answer.words
    [finding] = answer.findings
    assert (finding.edit.line, finding.edit.after) == (2, "")


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (["x = model.logits[:, -1, 3].save()"], "x = model.logits[:, 3].save()"),
        (["y = model.logits", "x = y.float()[0, -1, a:].save()"], "x = y.float()[0, a:].save()"),
    ],
)
def test_in_the_function_itself_the_index_is_left_out(tmp_path, lines, after):
    [finding] = told(tmp_path, *lines, number=12 + len(lines)).findings
    assert finding.edit.after.strip() == after


def test_of_another_value_no_word_of_the_logits_or_of_transformers_is_said(tmp_path):
    line = "x = model.model.layers[1].mlp.output[:, -1, 3].save()"
    words = told(tmp_path, f"y = {line[4:]}", line, number=2).words
    assert "logits" not in words and "transformers" not in words

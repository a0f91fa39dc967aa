"""An index that takes a token of `model.logits`, of which vLLM has the last one's alone."""

import pytest

from conformance.check.advice.errors import failures
from conformance.check.parsing import source
from conformance.records import Outcome, Status

REASON = "IndexError: too many indices for tensor of dimension 2"

HELPER = """\
def of(logits, good, bad=4):
    return logits[good] - logits[bad]


def hf(model):
    with model.trace("a"):
{theirs}
    return {{"x": x}}


def vllm(model):
    with model.trace("a", temperature=0.0, max_tokens=1):
{lines}
    return {{"x": x}}
"""

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


def frames(path, file, *numbers):
    """A traceback through these lines of a file."""
    return "".join(
        f'  File "{path}", line {n}, in x\n    {file.line(n).strip()}\n' for n in numbers
    )


def handed(folder, theirs, lines, *numbers, reason="IndexError: index 89 is out of bounds for it"):
    """What is told where the last of these lines fails, which the ones before it call."""
    path = folder / "port.py"
    body = {"theirs": theirs, "lines": lines}
    path.write_text(
        HELPER.format(**{k: "\n".join(f"        {each}" for each in v) for k, v in body.items()})
    )
    file = source.read(path)
    outcome = Outcome(Status.ERROR, 0.1, reason, frames(path, file, *numbers))
    return failures.explain(failures.Failed(outcome, file, "vllm", there=True, dual=True))


LAST = "model.lm_head.output[0, -1]"


@pytest.mark.parametrize(
    ("theirs", "lines", "calls", "after"),
    [
        (LAST, ["x = of(model.logits[0, -1], 3)"], 13, [(13, "x = of(model.logits[0], 3)")]),
        (
            LAST,
            ["x = of(model.logits.clone(), 3)"],
            13,
            [(13, "x = of(model.logits[0].clone(), 3)")],
        ),
        (LAST, ["y = model.logits", "x = of(y, 3)"], 14, [(13, "y = model.logits[0]")]),
        (
            LAST,
            ["y = of(model.logits[0, -1, :], 3)", "x = of(good=3, logits=model.logits)"],
            14,
            [
                (14, "x = of(good=3, logits=model.logits[0])"),
                (13, "y = of(model.logits[0], 3)"),
            ],
        ),
        (
            "model.lm_head.output[:, -1]",
            ["x = of(model.logits[:, -1].float(), 3)"],
            13,
            [(13, "x = of(model.logits.float(), 3)")],
        ),
    ],
)
def test_logits_that_a_function_of_both_sides_is_given_are_mended_where_they_are_read(
    tmp_path, theirs, lines, calls, after
):
    told = handed(tmp_path, [f"x = of({theirs}, 3)"], lines, calls, 2)
    assert [(one.edit.line, one.edit.after.strip()) for one in told.findings] == after
    assert "on vLLM `model.logits` are the last token's, [1, vocabulary]: what `hf`" in told.words


@pytest.mark.parametrize(
    ("theirs", "lines", "after"),
    [
        (
            [f"y = {LAST}", "x = y[good].save()"],
            ["y = model.logits", "x = y[good].save()"],
            [(14, "y = model.logits[0]")],
        ),
        (
            [f"y = {LAST}.float()", "x = y.topk(5)"],
            ["y = model.logits[0, -1]", "x = y.topk(9)"],
            [(14, "y = model.logits[0]")],
        ),
        ([f"y = {LAST}", "x = y[good].save()"], ["y = model.logits", "x = y[0][good].save()"], []),
    ],
)
def test_logits_that_a_line_has_by_a_name_are_mended_where_they_are_read(
    tmp_path, theirs, lines, after
):
    findings = handed(tmp_path, theirs, lines, 15).findings
    assert [(one.edit.line, one.edit.after.strip()) for one in findings if one.edit.after] == after


def test_right_logits_are_left_alone(tmp_path):
    lines = ["y = of(model.logits[0], 3)", "x = of(model.logits[-1], model.logits[0, 7])"]
    told = handed(tmp_path, [f"x = of({LAST}, 3)"], lines, 14, 2)
    assert [one.edit.after for one in told.findings] == [""]


def test_of_a_function_of_both_sides_the_line_that_calls_it_is_shown(tmp_path):
    mlp = "model.model.layers[1].mlp.output"
    told = handed(tmp_path, [f"x = of({mlp}, 3)"], [f"y = {mlp}[1:2]", "x = of(y, 3)"], 14, 2)
    [finding] = told.findings
    assert (finding.edit.line, finding.edit.after) == (14, "")
    assert "line 2 fails in what `hf` calls as well, and not there: line 14 gives it" in told.words
    told = handed(tmp_path, ["x = 1"], ["x = of(model.logits, 3)"], 13, 2)
    assert [one.edit.line for one in told.findings] == [2]


def test_a_tuple_that_a_function_of_both_sides_is_given_is_shown_where_it_is_given(tmp_path):
    layer = "model.model.layers[1].output"
    reason = "TypeError: tuple indices must be integers or slices, not tuple"
    lines = [f"y = {layer}", "x = of(y, 3)"]
    told = handed(tmp_path, [f"x = of({layer}, 3)"], lines, 14, 2, reason=reason)
    assert "returns a tuple" in told.words
    assert [one.edit.line for one in told.findings] == [14]

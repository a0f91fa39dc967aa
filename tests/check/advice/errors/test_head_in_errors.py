"""An error of a line that has the head's weights is none of calling it as a module."""

import pytest

from conformance.check.advice.errors import failures
from conformance.check.parsing import source
from conformance.records import Outcome, Status

SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (6x512 and 256x512)"
LATE = (
    "OutOfOrderError: Value 'model.lm_head.output.i0' was requested but the model already ran past"
)


def told(folder, line, reason, more=""):
    path = folder / "mine.py"
    path.write_text(
        "def hf(model):\n    return {}\n\n\ndef vllm(model):\n    head = model.lm_head\n"
        f"    with model.trace('a'):\n        {line}\n{more}    return {{}}\n"
    )
    detail = f'File "{path}", line 8, in vllm\n    {line}\n{reason}'
    outcome = Outcome(Status.ERROR, 0.1, reason, detail)
    return failures.explain(failures.Failed(outcome, source.read(path), "vllm", there=True)).words


@pytest.mark.parametrize(
    "more", ["", "        logits = model.lm_head.output.save()\n"], ids=["alone", "above another"]
)
def test_the_head_s_weights_are_no_call_of_it(tmp_path, more):
    line = "x = torch.nn.functional.linear(h, model.lm_head.weight) @ W.T"
    assert told(tmp_path, line, SHAPES, more) == SHAPES


@pytest.mark.parametrize(
    "line", ["x = model.lm_head.output[:, -1]", "x = head.input.save()", "x = head(h, 1)"]
)
def test_what_it_returns_or_is_given_is_not_there(tmp_path, line):
    for reason in (LATE, "AttributeError: lm_head has no output"):
        assert "vLLM does not call `lm_head` as a module" in told(tmp_path, line, reason)

"""A name that is not defined was lost by a block only where one made it and a line after it takes
it; else Python says what is wrong.
"""

import pytest

from conformance.check.advice.errors import failures
from conformance.check.parsing import source
from conformance.records import Outcome, Status

FILE = """\
MARY = tokenizer.encode("Mary")


def helper(h):
    return h * n


def hf(model):
    tokenizer = model.tokenizer
    if model.small:
        k = 1
    for layer in (1, 2):
        if layer > 1:
            before = kept
        with model.trace("a"):
            h = model.layers[layer].output
            if layer > 5:
                late = h.save()
            n = helper(h)
            kept = n + k
    with model.trace("b"):
        model.layers[1].output = h
        x = late.save()
    return {"x": x}


def vllm(model):
    return {"h": h}
"""


def told(folder, name, line, words="NameError: name '{}' is not defined"):
    path = folder / "mine.py"
    path.write_text(FILE)
    text = FILE.splitlines()[line - 1].strip()
    detail = f'File "{path}", line {line}, in somewhere\n    {text}'
    outcome = Outcome(Status.ERROR, 0.1, words.format(name), detail)
    return failures.explain(failures.Failed(outcome, source.read(path), "hf"))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tokenizer", 1),  # at the top of the file
        ("n", 5),  # another function's
        ("k", 20),  # bound outside of any block
        ("h", 19),  # in the block that makes it
        ("late", 23),  # saved, where it is run
        ("h", 28),  # another function's
    ],
)
def test_what_no_block_lost_is_said_as_python_says_it(tmp_path, name, line):
    found = told(tmp_path, name, line)
    assert found.words == f"NameError: name '{name}' is not defined"
    assert [(one.kind, one.edit.line, one.edit.after) for one in found.findings] == [
        ("error", line, "")
    ]


@pytest.mark.parametrize(("name", "line", "made"), [("h", 22, 16), ("kept", 14, 20)])
def test_what_a_block_lost_is_to_be_saved_there(tmp_path, name, line, made):
    words = "UnboundLocalError: cannot access local variable '{}' where it is not associated"
    found = told(tmp_path, name, line, words)
    assert f"`{name}` was not saved" in found.words
    assert found.findings[0].edit.line == made and ".save()" in found.findings[0].edit.after

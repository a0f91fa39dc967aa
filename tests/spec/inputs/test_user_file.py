"""A user's file is read and never run: its form, and the edit that makes it one."""

import pytest

from conformance.errors import ConformanceError, ExitCode
from conformance.spec.inputs import user_file

TRACE = "def trace(lm):\n    return {}\n"


def read(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return user_file.read(path)


def test_a_file_is_not_run(tmp_path):
    file = read(tmp_path, "raise SystemExit\n" + TRACE)
    assert list(file.functions) == ["trace"] and not file.ported


def test_two_functions_are_a_port(tmp_path):
    file = read(tmp_path, "def hf(model): ...\ndef vllm(model, prompt): ...\n")
    assert file.ported
    assert file.function_for("hf") == "hf" and file.function_for("vllm") == "vllm"


def test_what_is_no_python_is_said_with_its_line(tmp_path):
    with pytest.raises(ConformanceError, match="is no Python") as caught:
        read(tmp_path, "x = 1\ndef trace(lm:\n")
    assert caught.value.line == 2 and caught.value.code is ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "has neither"),
        ("def vllm(model): ...\n", "nothing to compare it with"),
        (TRACE + "def hf(model): ...\n", "has `trace` and `hf`"),
        ("def trace(lm, a, b): ...\n", "cannot be called by a check"),
        ("def trace(lm, whatever): ...\n", "cannot be called by a check"),
    ],
)
def test_other_forms_are_refused(tmp_path, text, words):
    with pytest.raises(ConformanceError, match=words):
        read(tmp_path, text)


def test_a_block_at_the_top_is_told_how_to_become_a_function(tmp_path):
    text = (
        "from nnsight import LanguageModel\n"
        "model = LanguageModel('x')\n"
        "with model.trace('Hello'):\n"
        "    h = model.model.layers[1].output.save()\n"
    )
    with pytest.raises(ConformanceError) as caught:
        read(tmp_path, text)
    assert caught.value.line == 3
    shown = "\n".join(line[6:] for line in caught.value.remedy.splitlines()[1:])
    fixed = read(tmp_path, shown + "\n")
    assert list(fixed.functions) == ["hf"]
    assert '"h": h' in shown and "with model.trace('Hello'):" in shown

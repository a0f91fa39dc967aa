"""What cannot be checked ends in a clear sentence, with the right exit code and no process left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from conformance.errors import ConformanceError, ExitCode
from conformance.spec.inputs import user_file

ROOT = Path(__file__).parents[4]

#: Files that cannot be read as a check's, and a part of what is said. None of them starts anything.
UNREADABLE = {
    "syntax.py": (b"x = 1\ndef trace(lm:\n", "syntax.py:2"),
    "binary.py": (bytes(range(256)), "is no text in UTF-8"),
    "nul.py": (b"def trace(lm):\n    return {}\0\n", "is no Python"),
    "empty.py": (b"", "has neither `trace(lm)`"),
}

TRACE = """\
def trace(lm):
    kept = []
    with lm.trace("The capital of France is"):
        {block}
    return {result}
"""

PORTED = """\
def hf(model):
    with model.trace("The capital of France is"):
        logits = model.lm_head.output[:, -1].save()
    return {{"logits": logits}}


def vllm(model):
    kept = []
    with model.trace("The capital of France is", temperature=0.0, max_tokens=1):
        {block}
        logits = model.logits.clone().save()
    return {{{result}}}
"""

NOWHERE, THERE = "cannot be checked", "fails there"

#: Files that are run: the file, what is answered, the line that is shown (0: none), and a part of
#: the sentence.
RUN = {
    "hangs": (
        TRACE.format(block="for _ in iter(int, 1): pass", result="{}"),
        (NOWHERE, 4, "no outcome within 30 s"),
    ),
    "hangs_there": (
        PORTED.format(block="for _ in iter(int, 1): pass", result='"logits": logits'),
        (THERE, 10, "no outcome within 30 s"),
    ),
    "allocates": (
        TRACE.format(
            block="while True:\n            kept.append(lm.logits.new_ones(1 << 26))", result="{}"
        ),
        (NOWHERE, 5, "it takes more memory than a trace may"),
    ),
    "allocates_there": (
        PORTED.format(
            block="while True:\n            kept.append(model.logits.new_ones(1 << 26))",
            result='"logits": logits',
        ),
        (THERE, 11, "it takes more memory than a trace may"),
    ),
    "nothing": (
        TRACE.format(block="lm.logits.save()", result="None"),
        (NOWHERE, 0, "the function returned nothing, not a mapping of names to values"),
    ),
    "raises": (
        TRACE.format(block="x = lm.logits.save()", result='{"x": 1 / 0}'),
        (NOWHERE, 5, "division by zero"),
    ),
    "other_names": (
        PORTED.format(block="pass", result='"last": logits'),
        ("differs", 0, "`last` comes back from the engine only"),
    ),
    "gradients": (
        PORTED.format(block="model.logits.sum().backward()", result='"logits": logits'),
        (THERE, 10, "vLLM computes under inference mode: there are no gradients"),
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_none_is_refused_before_anything_is_started(name, tmp_path):
    content, words = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConformanceError) as caught:
        user_file.read(tmp_path / name)
    assert caught.value.code is ExitCode.BAD_INPUT
    assert words in str(caught.value)


def run_check(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "conformance", "check", *map(str, words), "-m", "llama"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=os.environ | environment,
    )


def test_a_folder_is_refused_with_exit_code_two(tmp_path):
    ran = run_check(tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Is a directory" in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.engine
def test_what_a_file_does_wrong_is_said_of_it_and_of_no_other(tmp_path):
    for name, (text, _) in RUN.items():
        (tmp_path / f"{name}.py").write_text(text)
    marked = {"CONFORMANCE_TEST": str(tmp_path)}
    options = ["--json", "--timeout", 30, "--search", 0, "--reports", tmp_path / "checks"]
    ran = run_check(*(tmp_path / f"{name}.py" for name in RUN), *options, **marked)
    assert ran.returncode == 2, ran.stderr
    answers = {Path(one["file"]).stem: one for one in json.loads(ran.stdout)}
    for name, (_, (answer, line, words)) in RUN.items():
        told = answers[name]
        assert (told["answer"], words in told["sentence"]) == (answer, True), told
        shown = [one["line"] for one in told["findings"] if one["line"]]
        assert shown == ([line] if line else []), told
    assert [one for one in psutil.process_iter() if _carries(one, marked)] == []


@pytest.mark.slow
@pytest.mark.engine
def test_an_engine_is_kept_after_a_trace_that_failed(tmp_path):
    """And after one that did not: what a check watches is no change of the engine."""
    raising = PORTED.format(block="model.logits.output", result='"logits": logits')
    right = PORTED.format(block="pass", result='"logits": logits')
    for name, text in {"a_raises": raising, "b_right": right, "c_right": right}.items():
        (tmp_path / f"{name}.py").write_text(text)
    options = ["-b", "vllm-pp1", "-b", "vllm-pp2", "--reports", tmp_path / "c"]
    ran = run_check(*sorted(tmp_path.glob("*.py")), *options)
    assert ran.returncode == 1, ran.stderr
    groups = {}
    for path in (tmp_path / "c/latest/groups/llama").glob("*/group.json"):
        groups[path.parent.name] = json.loads(path.read_text())["starts"]
    assert groups.keys() >= {"reference", "vllm-pp1", "vllm-pp2+float32"}
    assert set(groups.values()) == {1}, groups


def _carries(process, marked):
    try:
        return process.environ().items() >= marked.items()
    except psutil.Error:
        return False

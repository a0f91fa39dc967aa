"""What fails within a block is named by its own line, as the file has it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conformance.check.advice.errors import failures
from conformance.check.parsing import source
from conformance.check.parsing.sent_blocks import line_of
from conformance.check.parsing.source import UserFile
from conformance.records import Outcome, Status

HEAD = "def hf(model):\n    return {}\n\n\ndef vllm(model):\n"
BLOCK = """\
    with model.trace("x", temperature=0.0) as tracer:
        # A comment, which is not sent, and a quote that is sent as another one.
        found = {}.save()
        for step in tracer.iter[:2]:

            a = model.model.layers[1].output[0].clone()
            if step == 1:
                found["sum"] = (
                    a.sum()
                    + model.model.layers[1].outputt
                )
            found["last"] = a[:, 99]
        model.model.layers[2].output = a
        found["end"] = a.view(
            7, 3
        )
    return found
"""


def written(folder: Path, block: str = BLOCK) -> UserFile:
    path = folder / "port.py"
    path.write_text(HEAD + block)
    return source.read(path)


def raised(file: UserFile, sent: str, marks: str = "") -> failures.Failed:
    """As nnsight 0.8.1 gives it: the file's `with`, then the block's line as it was sent."""
    [block] = [one for one in ast.walk(file.functions["vllm"]) if isinstance(one, ast.With)]
    lines = ast.unparse(ast.Module(body=block.body, type_ignores=[])).splitlines()
    [at] = [n for n, line in enumerate(lines) if line.strip() == sent]
    where = f'  File "<edit-139847>", line {block.body[0].lineno + at}, in <module>\n    {sent}\n'
    detail = (
        f'  File "{file.path}", line 6, in vllm\n    {file.line(6).strip()}\n'
        "RuntimeError: ValueError: no\n\nIntervention traceback:\n"
        f"{where}{f'    {marks}' if marks else ''}\n"
    )
    return failures.Failed(
        Outcome(Status.ERROR, 0.1, "RuntimeError: ValueError: no", detail), file, "vllm", there=True
    )


@pytest.mark.parametrize(
    ("sent", "failing", "line"),
    [
        ("found = {}.save()", "", "found = {}.save()"),
        ("found['last'] = a[:, 99]", "a[:, 99]", 'found["last"] = a[:, 99]'),
        ("found['sum'] = a.sum() + model.model.layers[1].outputt", "", 'found["sum"] = ('),
        (
            "found['sum'] = a.sum() + model.model.layers[1].outputt",
            "model.model.layers[1].outputt",
            "+ model.model.layers[1].outputt",
        ),
        ("found['sum'] = a.sum() + model.model.layers[1].outputt", "a.sum()", "a.sum()"),
        ("found['end'] = a.view(7, 3)", "a.view(7, 3)", 'found["end"] = a.view('),
    ],
)
def test_a_sent_line_is_the_files_own(tmp_path: Path, sent: str, failing: str, line: str) -> None:
    file = written(tmp_path)
    start = sent.index(failing)
    marks = f"{' ' * start}{'^' * len(failing)}" if failing else ""
    failed = raised(file, sent, marks)
    assert failed.line is not None and file.line(failed.line).strip() == line
    [finding] = failures.explain(failed).findings
    assert finding.edit is not None and finding.edit.line == failed.line


def test_below_a_last_line_a_mark_may_be_a_column_too_far(tmp_path: Path) -> None:
    block = (
        '    with model.trace("x"):\n        a = (\n            one\n            + two\n        )\n'
    )
    file = written(tmp_path, block + "    return {}\n")
    sent = "a = one + two"
    for far in (0, 1):
        failed = raised(file, sent, f"{' ' * (10 + far)}^^^")
        assert failed.line == 9


def test_what_no_block_has_is_not_guessed() -> None:
    assert line_of(HEAD + BLOCK, 8, "another = statement") is None
    assert line_of(HEAD + BLOCK, 900, "found = {}.save()") is None


WIDENED = """\
RuntimeError: RuntimeError: Tensors must have same number of dimensions: got 2 and 1

Intervention traceback:
  File "/env/nnsight/intervention/interleaver.py", line 815, in handle
    value = mediator.handle(provider, value)
  File "/env/nnsight/intervention/batching.py", line 158, in widen
    return merge(full, edited)
"""


def test_a_value_that_cannot_be_put_in_its_place_is_named_where_it_is_put(tmp_path: Path) -> None:
    file = written(tmp_path)
    detail = f'  File "{file.path}", line 6, in vllm\n    {file.line(6).strip()}\n{WIDENED}'
    failed = failures.Failed(
        Outcome(Status.ERROR, 0.1, "RuntimeError: no", detail), file, "vllm", there=True
    )
    assert failed.line is not None
    assert file.line(failed.line).strip() == "model.model.layers[2].output = a"


def test_of_two_values_that_are_put_none_is_blamed(tmp_path: Path) -> None:
    put = "        model.model.layers[2].output = a\n"
    file = written(tmp_path, BLOCK.replace(put, put + put.replace("2", "3")))
    detail = f'  File "{file.path}", line 6, in vllm\n    {file.line(6).strip()}\n{WIDENED}'
    failed = failures.Failed(
        Outcome(Status.ERROR, 0.1, "RuntimeError: no", detail), file, "vllm", there=True
    )
    assert failed.line == 6


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("HFModel", "tokeniser", "`lm` has no `tokeniser`, but: trace, layers, embedding"),
        ("PaddedLayer", "output", "a layer of `lm` has no `output`, but: stream, input, attention"),
        ("Part", "q_proj", "a part of `lm` has no `q_proj`, but: input, output, live"),
    ],
)
def test_what_the_adapter_has_not_is_told_with_what_it_has(
    tmp_path: Path, kind: str, name: str, words: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def trace(lm):\n    x = lm.{name}\n    return {{}}\n")
    error = f"AttributeError: '{kind}' object has no attribute '{name}'"
    detail = f'  File "{path}", line 2, in trace\n    x = lm.{name}\n{error}\n'
    outcome = Outcome(Status.ERROR, 0.1, error, detail)
    told = failures.explain(failures.Failed(outcome, source.read(path), "trace"))
    assert told.words.startswith(words) and "`vllm(model)`" in told.words
    assert [one.edit.line for one in told.findings if one.edit] == [2]

"""Edits: what a diff shows, and an answer with the edit that a search found."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.check.checked import CheckAnswer, Checked
from conformance.commands.check.search.driver import with_other_prompts
from conformance.commands.check.search.edits import Found, diff, suggested, without_hunks
from conformance.commands.check.search.program import ParsedFile
from conformance.commands.check.show import changes_in
from conformance.spec.inputs.user_file import read


@pytest.mark.parametrize(
    ("pattern", "line", "holes"),
    [
        ("X.to(A)", "h = (a + b).to( torch.half )", {"X": "a + b", "A": "torch.half"}),
        ("X.to(A)", "h = a.to(b, c)", None),
        ("X[0] + X[1]", "h = layer.output[0] + layer.output[1]", {"X": "layer.output"}),
        ("X[0] + X[1]", "h = one[0] + other[1]", None),
        ("A, B = X.output", "m, _ = layers[2].output", {"A": "m", "B": "_", "X": "layers[2]"}),
    ],
)
def test_a_pattern_fits_what_has_its_structure(pattern, line, holes):
    program = ParsedFile(f"def vllm(model):\n    {line}\n", "vllm")
    found = [one for _, one in program.matches(pattern)]
    codes = [{name: program.code(node) for name, node in one.items()} for one in found]
    assert codes == ([holes] if holes else [])


LINES = st.lists(st.sampled_from(["a", "b", "c", "    d", "x"]), max_size=8)


@given(LINES, LINES)
def test_a_diff_shows_every_line_that_changes_at_its_number(before, after):
    changes = list(changes_in(diff("\n".join(before), "\n".join(after), "x")))
    shown = [row for _, change in changes for row in change]
    old, new = Counter(before), Counter(after)
    removed = Counter(row[1:] for row in shown if row[0] == "-")
    added = Counter(row[1:] for row in shown if row[0] == "+")
    assert old - removed + added == new
    for number, change in changes:
        gone = [row[1:] for row in change if row[0] == "-"]
        assert gone == before[number - 1 : number - 1 + len(gone)]


def test_every_change_is_taken_back_by_itself():
    before, after = "a\nb\nc\nd\n", "a\nB\nC\nd\ne\n"
    taken = without_hunks(before, after)
    assert taken[:3] == ["a\nb\nC\nd\ne\n", "a\nB\nc\nd\ne\n", "a\nB\nC\nd\n"]
    # A changed line that has no effect is left out.
    assert without_hunks(before, "a\nB\nc\nd\n") == ["a\nc\nd\n"]


def test_two_changes_that_need_each_other_are_taken_back_together():
    before, after = "a\nb\nc\n", "A\nB\nC\n"
    assert {"a\nb\nC\n", "a\nB\nc\n", "A\nb\nc\n"} <= {*without_hunks(before, after)}
    many = "".join(f"{number}\n" for number in range(9))
    assert len(without_hunks(many, many.replace("\n", "!\n"))) == 18


def test_a_line_that_is_moved_is_taken_back_as_one():
    before = "a = []\nwith b:\n    c\n"
    after = "with b:\n    a = [].save()\n    c\n"
    assert without_hunks(before, after)[0] == before


def test_other_prompts_have_the_same_words_and_docstrings_and_keys_stay():
    text = '"""A text of several words."""\nP = "The capital of France is"\nD = {"key": P}\n'
    changed = with_other_prompts(text)
    assert changed == text.replace("The capital of France is", "capital of France is The")


@pytest.mark.parametrize("verified", [True, False])
def test_an_engine_that_computes_another_model_excuses_no_line_that_an_edit_mends(
    tmp_path, verified
):
    """What a layer gives before the engine parts from transformers may be read wrongly, too."""
    path = tmp_path / "lens.py"
    path.write_text("def trace(lm):\n    return 1\n")
    file = read(path)
    edited = file.text.replace("1", "2")
    found = Found("lens", "vllm", edited, verified, tried=7, engine="vllm computes another model")
    differs = Checked("lens", "llama", "vllm", CheckAnswer.DIFFERS, "not the same")
    checked = suggested(file, differs, found, ())
    assert checked.verified is verified
    assert ("another model" in checked.sentence) is not verified
    assert bool(checked.diff) is verified
    assert any("7 edits were run" in note for note in checked.notes) is not verified

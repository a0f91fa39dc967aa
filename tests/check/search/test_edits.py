"""Edits between two versions: applied to the first they give the second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.check.checked import Answer, Checked
from conformance.check.search.driver import with_other_prompts
from conformance.check.search.edits import Found, edits_between, suggested, without_hunks
from conformance.check.source import read

LINES = st.lists(st.sampled_from(["a", "b", "c", "    d", ""]), max_size=8)


def applied(before: str, edits) -> str:
    lines = before.splitlines()
    for edit in reversed(edits):
        first, count = edit.line - 1, len(edit.before.split("\n"))
        assert "\n".join(lines[first : first + count]) == edit.before
        lines[first : first + count] = edit.after.split("\n")
    return "\n".join(lines)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=8), LINES.filter(bool))
def test_edits_applied_to_the_first_version_give_the_second(before, after):
    after = [line or "x" for line in after]
    edits = edits_between("\n".join(before), "\n".join(after), verified=True)
    assert applied("\n".join(before), edits) == "\n".join(after)
    assert all(edit.verified for edit in edits)


def test_every_change_is_taken_back_by_itself():
    before, after = "a\nb\nc\nd\n", "a\nB\nC\nd\ne\n"
    taken = without_hunks(before, after)
    assert sorted(taken) == sorted(["a\nb\nC\nd\ne\n", "a\nB\nc\nd\ne\n", "a\nB\nC\nd\n"])
    assert without_hunks(before, "a\nB\nc\nd\n") == []


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
    differs = Checked("lens", "llama", "vllm", Answer.DIFFERS, "not the same")
    checked = suggested(file, differs, found, ())
    assert checked.verified is verified
    assert ("another model" in checked.sentence) is not verified
    assert bool(checked.diff) is verified
    assert any("7 edits were run" in note for note in checked.notes) is not verified

"""`--fix` writes what was verified, keeps what was there, and never what has changed since."""

from __future__ import annotations

import pytest

from conformance.commands.check.checked import CheckAnswer, Checked
from conformance.commands.check.search.edits import write_fixes
from conformance.errors import ConformanceError


def checked(path, fixed, backend="vllm-pp1"):
    return Checked(
        str(path), "llama", backend, CheckAnswer.DIFFERS, "x", verified=True, fixed=fixed
    )


def test_the_verified_version_is_written_and_the_former_one_kept(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("before\n")
    (tmp_path / "mine.py.orig").write_text("older\n")
    said = list(write_fixes([checked(path, "after\n")] * 2, {str(path): "before\n"}))
    assert path.read_text() == "after\n"
    assert (tmp_path / "mine.py.orig").read_text() == "older\n"
    assert (tmp_path / "mine.py.orig2").read_text() == "before\n"
    assert said == ["fixed mine.py; what it was is in mine.py.orig2"]


def test_a_file_that_has_changed_meanwhile_is_left_alone(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("edited\n")
    with pytest.raises(ConformanceError, match="has changed since it was checked"):
        list(write_fixes([checked(path, "after\n")], {str(path): "before\n"}))
    assert path.read_text() == "edited\n"


def test_engines_that_want_different_edits_change_nothing(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("before\n")
    both = [checked(path, "one\n"), checked(path, "other\n", "vllm-pp2")]
    with pytest.raises(ConformanceError, match="different edits"):
        list(write_fixes(both, {str(path): "before\n"}))
    assert path.read_text() == "before\n"

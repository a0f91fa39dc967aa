"""The answer on a terminal."""

from io import StringIO
from types import SimpleNamespace
from typing import cast

from rich.console import Console

from conformance.commands.check import show
from conformance.commands.check.checked import CheckAnswer, Checked, CheckFinding
from conformance.commands.check.search.edits import diff
from conformance.spec.records import RunInfo


def shown(checked: Checked) -> list[str]:
    console = Console(file=StringIO(), width=300)
    show.answer(checked, [], console)
    assert isinstance(console.file, StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()[1:]]


def test_every_change_of_a_diff_is_shown_at_its_line():
    before = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"
    after = "a = 1\nb = 3\nc = 3\nd = 4\n"
    edited = Checked(
        "a.py", "llama", "pp1", CheckAnswer.DIFFERS, "x", diff=diff(before, after, "a.py")
    )
    assert shown(edited) == ["a.py:2", "- b = 2", "+ b = 3", "a.py:5", "- e = 5"]


def test_the_line_of_an_error_is_shown():
    told = (CheckFinding("error", "x", line=3, code="    boom()"),)
    failed = Checked("a.py", "llama", "pp1", CheckAnswer.FAILS, "x", told)
    assert shown(failed) == ["a.py:3", "boom()"]


def ending(*checked: Checked) -> str:
    console = Console(file=StringIO(), width=300)
    keys = [(f"check[llama-pp1-check.{n}]", one) for n, one in enumerate(checked)]
    show.more(keys, cast(RunInfo, SimpleNamespace(id="RUN")), None, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_of_several_that_differ_it_is_said_that_the_script_is_of_the_first():
    off = Checked("a.py", "llama", "pp1", CheckAnswer.DIFFERS, "x", page="p")
    script = "conformance repro 'check[llama-pp1-check.0]' --run RUN\n"
    assert ending(off).endswith(f"alone: {script}")
    several = ending(off, off, off)
    assert several.endswith(f"alone (the first of 3; the page has the others' names): {script}")

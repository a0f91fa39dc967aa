"""The answer on a terminal."""

from io import StringIO
from types import SimpleNamespace
from typing import cast

from rich.console import Console

from conformance.check import show
from conformance.check.checked import Answer, Checked, Edit, Finding
from conformance.records import RunInfo


def test_lines_to_change_are_counted_once_over_all_engines_and_the_time_is_said():
    told = tuple(
        Finding("half", "words", edit=edit)
        for edit in (Edit(3, "a", "b"), Edit(4, "a", "b"), Edit(9, "only shown"), None)
    )
    checked = [
        Checked("a.py", "llama", backend, Answer.DIFFERS, "x", told) for backend in ("pp1", "pp2")
    ]
    assert show.summary(checked, 41.3) == "2 lines to change as shown; took 41 s"
    one = Checked("b.py", "llama", "pp1", Answer.DIFFERS, "x", told[:1])
    assert show.summary([one], 1) == "1 line to change as shown; took 1 s"
    assert show.summary([Checked("b.py", "llama", "pp1", Answer.SAME, "x")], 5) == "took 5 s"


def test_of_several_files_it_is_said_how_many_lines_are_to_be_changed_in_which():
    told = tuple(Finding("half", "words", edit=Edit(line, "a", "b")) for line in (3, 4))
    good = Checked("d/good.py", "llama", "pp1", Answer.SAME, "x")
    bad = [Checked("d/a.py", "llama", at, Answer.DIFFERS, "x", told) for at in ("pp1", "pp2")]
    other = Checked("e/a.py", "llama", "pp1", Answer.DIFFERS, "x", told[:1])
    said = show.summary([good, *bad], 9)
    assert said == "2 lines to change as shown: 2 in a.py; took 9 s"
    said = show.summary([good, *bad, other], 9)
    assert said == "3 lines to change as shown: 2 in d/a.py, 1 in e/a.py; took 9 s"


def test_lines_that_go_together_are_each_shown_with_a_sign():
    edit = Edit(3, "    a = {}\n    with b:", "    with b:\n        a = {}.save()")
    told = (Finding("unsaved", "x", edit=edit),)
    console = Console(file=StringIO(), width=300)
    show.answer(Checked("a.py", "llama", "pp1", Answer.DIFFERS, "x", told), [], console)
    assert isinstance(console.file, StringIO)
    assert [line.strip()[:1] for line in console.file.getvalue().splitlines()[2:]] == list("--++")


def ending(*checked: Checked) -> str:
    console = Console(file=StringIO(), width=300)
    keys = [(f"check[llama-pp1-check.{n}]", one) for n, one in enumerate(checked)]
    show.more(keys, cast(RunInfo, SimpleNamespace(id="RUN")), None, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_what_a_line_without_an_edit_is_is_said_once():
    shown, mended = Edit(3, "a"), Edit(4, "a", "b")
    differs = [
        Checked(
            "a.py", "llama", at, Answer.DIFFERS, "x", (Finding("k", "w", edit=shown),) * 2, page="p"
        )
        for at in ("pp1", "pp2")
    ]
    assert ending(*differs).count("a line without - and +") == 1
    known = Checked(
        "a.py", "llama", "pp1", Answer.DIFFERS, "x", (Finding("k", "w", edit=mended),), page="p"
    )
    fails = Checked(
        "a.py", "llama", "pp1", Answer.FAILS, "x", (Finding("k", "w", edit=shown),), page="p"
    )
    assert "a line without" not in ending(known, fails)


def test_of_several_that_differ_it_is_said_that_the_script_is_of_the_first():
    off = Checked("a.py", "llama", "pp1", Answer.DIFFERS, "x", page="p")
    script = "conformance repro 'check[llama-pp1-check.0]' --run RUN\n"
    assert ending(off).endswith(f"alone: {script}")
    several = ending(off, off, off)
    assert several.endswith(f"alone (the first of 3; the page has the others' names): {script}")

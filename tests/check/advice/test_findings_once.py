"""What one edit mends is shown once."""

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding, once

EDIT = Edit(3, "a = b[0]", "a = b[0] + b[1]")


def test_values_with_the_same_edit_are_one_finding_that_names_all():
    told = [Finding("half", f"`{name}` differs", name, edit=EDIT) for name in ("a", "b", "c")]
    [found] = once(told)
    assert (found.name, found.edit) == ("a", EDIT)
    assert found.words == "`a` differs. The same edit is for `b`, `c`"


def test_what_has_no_name_is_not_named():
    told = [Finding("half", f"line {n}", edit=EDIT) for n in (1, 2)]
    assert once(told) == (told[0],)
    [found] = once([*told, Finding("half", "`a` differs", "a", edit=EDIT)])
    assert found.words == "line 1. The same edit is for `a`"


def test_what_has_another_edit_or_kind_or_none_stays():
    told = [
        Finding("half", "one", "a", edit=EDIT),
        Finding("mlp", "two", "b", edit=EDIT),
        Finding("half", "three", "c", edit=Edit(4, "x", "y")),
        Finding("half", "four", "d", edit=Edit(5, "x")),
        Finding("half", "five", "e", edit=Edit(5, "x")),
        Finding("half", "six", "f"),
    ]
    assert once(told) == tuple(told)

"""An answer with what a search found: the edits, and what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.check.checked import Answer, Checked, Edit, Finding
from conformance.check.search.edits import Found, diff, edits_between
from conformance.check.source import UserFile

#: Answers that a line of the user's can change.
SEARCHED = frozenset({Answer.DIFFERS, Answer.FAILS, Answer.INVALID})


def suggested(
    file: UserFile, checked: Checked, found: Found | None, others: Sequence[Checked]
) -> Checked:
    """Return an answer with the edits that a search found for it. `others` are the answers for the
    same file on other engines.
    """
    if checked.answer not in SEARCHED:
        return checked
    if (agreeing := _agreeing(checked, others)) is not None:
        words = (
            f"the same file agrees on {agreeing}: what differs is the engine's on "
            f"{checked.backend}, and no line of yours"
        )
        return replace(checked, notes=(*checked.notes, words), findings=_unplaced(checked))
    if found is None or not (found.tried or found.engine):
        return checked
    return _engines(checked, found) if found.engine else _edited(file, checked, found)


def _engines(checked: Checked, found: Found) -> Checked:
    """The engine differs by itself."""
    return replace(
        checked,
        sentence=f"not the same: {found.engine}",
        findings=(Finding("engine", found.engine), *_unplaced(checked)),
        notes=(*checked.notes, "no line of yours is at fault"),
    )


def _edited(file: UserFile, checked: Checked, found: Found) -> Checked:
    edits = edits_between(file.text, found.text, verified=found.verified)
    if not edits:
        words = f"{found.tried} edits were run in {found.seconds:.0f} s, and none made it agree"
        return replace(checked, notes=(*checked.notes, words))
    return replace(
        checked,
        findings=_with_edits(checked.findings, edits, found),
        diff=diff(file.text, found.text, file.path.name),
        verified=found.verified,
        fixed=found.text if found.verified else "",
        notes=(*checked.notes, *_worth(found)),
    )


def _agreeing(checked: Checked, others: Sequence[Checked]) -> str | None:
    fine = {Answer.SAME, Answer.NUMERICS}
    if checked.answer is Answer.INVALID:
        return None
    return next((one.backend for one in others if one.answer in fine), None)


def _unplaced(checked: Checked) -> tuple[Finding, ...]:
    return tuple(replace(one, edit=None) for one in checked.findings)


def _with_edits(
    findings: Sequence[Finding], edits: Sequence[Edit], found: Found
) -> tuple[Finding, ...]:
    """The first finding has the first edit; each further edit says why it is made."""
    first, *others = findings or (Finding("edit", "; ".join(found.words)),)
    more = [Finding("edit", "this line changes too", edit=edit) for edit in edits[1:]]
    rest = [replace(one, edit=None) for one in others]
    return (replace(first, edit=edits[0]), *more, *rest)


def _worth(found: Found) -> tuple[str, ...]:
    took = f"{found.tried} versions were run in {found.seconds:.0f} s"
    why = f": {'; '.join(found.words)}" if found.words else ""
    if found.verified:
        note = (found.note,) if found.note else ()
        return (f"verified: with this edit your trace agrees{why} ({took})", *note)
    return (
        f"this edit helps, and the file does not agree with it yet{why}: {found.left} ({took})",
    )

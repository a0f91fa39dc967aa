"""An answer with what a search found: the edits, and what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.check.checked import AGREES, Answer, Checked, Edit, Finding
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
    own = [replace(one, edit=None) for one in checked.findings]
    agreeing = next((one.backend for one in others if one.answer in AGREES), None)
    if agreeing and checked.answer is not Answer.INVALID:
        words = (
            f"the same file agrees on {agreeing}: what differs is the engine's on "
            f"{checked.backend}, and no line of yours"
        )
        return replace(checked, notes=(*checked.notes, words), findings=tuple(own))
    if found is None or not (found.tried or found.engine):
        return checked
    if not found.engine:
        return _edited(file, checked, found)
    return replace(
        checked,
        sentence=f"not the same: {found.engine}",
        findings=(Finding("engine", found.engine), *own),
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

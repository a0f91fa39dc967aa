"""The result of a search: the version that agrees, its diff, the answer with both, and writing it
to the user's file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, count
from pathlib import Path

from conformance.commands.check.checked import AGREES, CheckAnswer, Checked, CheckFinding
from conformance.errors import ConformanceError
from conformance.spec.inputs.user_file import UserFile
from conformance.spec.records import record

#: Up to this number of changes, every two are also undone together.
_PAIRED = 8

#: Answers that an edit of the user's file can change.
SEARCHED = frozenset({CheckAnswer.DIFFERS, CheckAnswer.FAILS, CheckAnswer.INVALID})


@record()
class Found:
    """The result of a search for one file on one engine.

    `text` is the best version, the file's own if none is better. `verified` means that it agrees,
    on the file's prompts and on others, in float32 and in bf16; otherwise `left` says what differs.
    `words` are the reasons for its edits. `tried` is the number of versions that ran, in `seconds`.
    `engine` says what the engine computes differently in a clean run.
    """

    file: str
    backend: str
    text: str = ""
    verified: bool = False
    words: tuple[str, ...] = ()
    left: str = ""
    tried: int = 0
    seconds: float = 0.0
    note: str = ""
    engine: str = ""


def diff(before: str, after: str, name: str) -> str:
    """Return a unified diff between two versions of a file."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), name, f"{name} (suggested)", lineterm="", n=1
    )
    return "\n".join(lines)


def without_hunks(before: str, after: str) -> list[str]:
    """Return the versions with one change undone, then those with two, as for a value's new form
    where it is assigned and used, then those without a changed line, which may have no effect. A
    line that moved, even with additions, is one change: half of it would do nothing.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    codes: list[tuple[str, int, int, int, int]] = []  # tag, and the ranges of old and new lines
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        by_line = b - a if tag == "replace" and b - a == d - c else 0
        codes += [(tag, a + n, a + n + 1, c + n, c + n + 1) for n in range(by_line)]
        codes += [] if by_line else [(tag, a, b, c, d)]
    changes = [code for code in codes if code[0] != "equal"]
    added = [(code, line.strip()) for code in changes for line in new[code[3] : code[4]]]
    groups = []
    for code in changes:
        gone = "" if code[0] != "delete" else old[code[1]].strip()
        moved = {other for other, line in added if gone and line.startswith(gone)}
        groups.append({code, *moved})
    if len(groups) <= _PAIRED:
        groups += [one | other for one, other in combinations(groups, 2) if len(groups) > 2]
    versions = [(group, True) for group in (groups if len(groups) > 1 else ())]
    versions += [({code}, False) for code in changes if code[0] == "replace"]
    return [
        "".join(
            line
            for code in codes
            for line in (
                new[code[3] : code[4]] if code not in skipped else old[code[1] : code[2]] * undo
            )
        )
        for skipped, undo in versions
    ]


def suggested(
    file: UserFile, checked: Checked, found: Found | None, others: Sequence[Checked]
) -> Checked:
    """Return an answer with the edit found for it, given the file's answers on other engines."""
    if checked.answer not in SEARCHED:
        return checked
    agreeing = next((one.backend for one in others if one.answer in AGREES), None)
    if agreeing and checked.answer is not CheckAnswer.INVALID:
        words = f"it agrees on {agreeing}: {checked.backend} itself differs, no line of yours"
        return replace(checked, notes=(*checked.notes, words))
    if found is None or not (found.tried or found.engine):
        return checked
    if found.verified or not found.engine:
        return _edited(file, checked, found)
    # If the engine computes another model, an unverified edit may only compensate for that.
    tried = f"{found.tried} edits were run, and none made it agree: " if found.tried else ""
    words = f"{tried}no edit of your file that was tried helps"
    return replace(
        checked,
        sentence=f"not the same: {found.engine}",
        findings=(CheckFinding("engine", found.engine), *checked.findings),
        notes=(*checked.notes, words),
    )


def _edited(file: UserFile, checked: Checked, found: Found) -> Checked:
    if found.text == file.text:
        words = f"{found.tried} edits were run in {found.seconds:.0f} s, and none made it agree"
        return replace(checked, notes=(*checked.notes, words))
    took = f"{found.tried} version{'s were' if found.tried != 1 else ' was'}"
    took += f" run in {found.seconds:.0f} s"
    why = f": {'; '.join(found.words)}" if found.words else ""
    note = f"this edit helps, and the file does not agree with it yet{why}: {found.left} ({took})"
    if found.verified:
        note = f"verified: with this edit your trace agrees{why} ({took})"
    more = (found.note,) if found.verified and found.note else ()
    return replace(
        checked,
        findings=checked.findings or (CheckFinding("edit", "; ".join(found.words)),),
        diff=diff(file.text, found.text, file.path.name),
        verified=found.verified,
        fixed=found.text if found.verified else "",
        notes=(*checked.notes, note, *more),
    )


def write_fixes(checked: Sequence[Checked], texts: Mapping[str, str]) -> Iterator[str]:
    """Write each file's verified version, and yield a message for it. `texts` are as checked.

    Raises ConformanceError if a file has changed since, or if engines need different edits.
    """
    for name, text in texts.items():
        path = Path(name)
        versions = {one.fixed for one in checked if one.file == name and one.fixed}
        if not versions:
            continue
        if len(versions) > 1:
            words, remedy = "engines want different edits", "check one engine at a time, with -b"
            raise ConformanceError(words, path=path, remedy=remedy)
        if path.read_text(encoding="utf-8") != text:
            words = "has changed since it was checked, and was left as it is"
            raise ConformanceError(words, path=path, remedy="check it again")
        names = (f"{path.name}.orig{number if number > 1 else ''}" for number in count(1))
        backup = next(path.with_name(one) for one in names if not path.with_name(one).exists())
        backup.write_text(text, encoding="utf-8")
        path.write_text(versions.pop(), encoding="utf-8")
        yield f"fixed {path.name}; what it was is in {backup.name}"

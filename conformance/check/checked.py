"""What a check says of one file on one engine, and its exit code."""

from __future__ import annotations

from enum import StrEnum

from conformance.check.finding import Finding
from conformance.errors import ExitCode
from conformance.records import record, to_json


class Answer(StrEnum):
    """What a check says of one file on one engine."""

    SAME = "same"
    NUMERICS = "same but for numerics"
    DIFFERS = "differs"
    FAILS = "fails there"
    UNSUPPORTED = "unsupported there"
    INVALID = "cannot be checked"
    HARNESS = "harness failure"

    @property
    def code(self) -> ExitCode:
        return {
            Answer.SAME: ExitCode.OK,
            Answer.NUMERICS: ExitCode.OK,
            Answer.INVALID: ExitCode.BAD_INPUT,
            Answer.HARNESS: ExitCode.HARNESS,
        }.get(self, ExitCode.UNEXPECTED)


@record()
class Checked:
    """One file on one engine. `sentence` is the answer in words, `findings` say more.

    `meaning` and `numerics` are the judge's own words in float32 and in bf16; `error` is the
    largest relative distance from transformers in float32, over tokens the median. `page` is
    where all of it is shown. `diff` is what changes in the file, `verified` whether the file was
    run so and agrees; then `fixed` is its text.
    """

    file: str
    model: str
    backend: str
    answer: Answer
    sentence: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    meaning: str = ""
    numerics: str = ""
    error: float | None = None
    detail: str = ""
    page: str = ""
    diff: str = ""
    verified: bool = False
    fixed: str = ""


def exit_code(checked: list[Checked]) -> ExitCode:
    """Of several answers the gravest: ours, the user's input, a difference."""
    codes = {one.answer.code for one in checked}
    order = (ExitCode.HARNESS, ExitCode.BAD_INPUT, ExitCode.UNEXPECTED)
    return next((code for code in order if code in codes), ExitCode.OK)


def to_text(checked: list[Checked]) -> str:
    """The answers as a JSON list."""
    return f"[{', '.join(to_json(one) for one in checked)}]"

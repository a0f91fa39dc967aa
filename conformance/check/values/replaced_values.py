"""Which known value a write put in the place of another: by its numbers, in float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from conformance.check.values.identify import Held, identify
from conformance.check.values.known_values import Known, near, same_prompt


@dataclass(frozen=True)
class Given:
    """`held` was put where `meant` was due, None where that is nothing known. `left` is the half
    of the stream that stayed beside it, "" where none did. `again`: the same of another run of the
    same prompt was due, so that nothing else of the model was put there.
    """

    held: Held
    meant: Held | None
    left: str = ""
    again: bool = False

    @property
    def half(self) -> bool:
        """Is it half of a residual stream where the whole was due?"""
        whole = self.meant is None or self.meant.kind in {"stream", "unedited"}
        return self.held.kind in {"mlp", "residual"} and whole

    @property
    def words(self) -> str:
        if self.again:
            return (
                f"it is what prompt {self.held.sequence} has there, another run of the same text, "
                "with what is written in that one"
            )
        if self.meant and self.held.what() == self.meant.what():
            of = f"of prompt {self.held.sequence} instead of prompt {self.meant.sequence}"
            return f"what is written is {self.held.what()} {of}"
        half = ", half of the residual stream," if self.half else ""
        due = f" instead of {self.meant.what()}" if self.meant else ""
        return f"what is written is {self.held.what()}{half if due else half[:-1]}{due}"


def given(
    ours: Tensor, theirs: Tensor, clean: Mapping[str, Tensor], known: list[Known]
) -> Given | None:
    """What was written in these rows, [tokens, width], alone or beside a half that was left;
    None where it is no known value. `clean` is what the layer computes there, by kind.
    """
    halves = {"first-half": clean.get("residual"), "second-half": clean.get("mlp")}
    for kind, left in {"": None, **halves}.items():
        if kind and left is None:
            continue
        rows = once(ours if left is None else ours - left)
        held = identify(rows, known)
        meant = identify(once(theirs), known)
        if held is not None and held != meant:
            alike = meant is not None and held.what() == meant.what()
            again = meant is not None and same_prompt(held.sequence, meant.sequence, known)
            return Given(held, meant, kind, again=alike and again)
    return None


def once(rows: Tensor) -> Tensor:
    """A row that was written to several tokens, once."""
    return rows[:1] if near(rows, rows[:1].expand_as(rows)) else rows

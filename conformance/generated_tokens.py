"""The tokens that a run generated, and whether they are the truth's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from conformance.records import CHOSEN, DEFINITION, Precision, Site

if TYPE_CHECKING:
    from torch import Tensor

#: Begins the name of a member of the reference that computes in float32; the others do in bf16.
FLOAT32_WAY = "float32_"

#: Token ids by run ("", "clean", "edited"), one tuple a prompt.
Continuation = dict[str, tuple[tuple[int, ...], ...]]


def continuation(values: Mapping[str, Tensor], prompts: int) -> Continuation:
    """The generated ids among observations by site; {} when a scenario keeps none."""
    ids: dict[str, dict[int, dict[int, int]]] = {}
    for text, value in values.items():
        site = Site.parse(text)
        if site.name in CHOSEN and value.numel() == 1:
            ids.setdefault(site.run, {}).setdefault(site.prompt, {})[site.step] = int(value)
    return {
        run: tuple(
            tuple(token for _, token in sorted(by_prompt.get(prompt, {}).items()))
            for prompt in range(prompts)
        )
        for run, by_prompt in sorted(ids.items())
    }


def by_member(values: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The reference's observations, `member|site`, by member and site."""
    members: dict[str, dict[str, Tensor]] = {}
    for key, value in values.items():
        member, _, site = key.partition("|")
        members.setdefault(member, {})[site] = value
    return members


def in_precision(member: str, precision: Precision) -> bool:
    """Is this a member of the reference that computes in this precision? The truth is none."""
    if member in {"truth", "aux"} or member.startswith(DEFINITION):
        return False
    return member.startswith(FLOAT32_WAY) is (precision is Precision.FLOAT32)


def differing(observed: Continuation, truth: Continuation) -> Continuation:
    """Those runs of mine that are not the truth's; a run the truth does not have is left out.

    The last token is nobody's context, so a difference there does not matter.
    """
    return {
        run: ids
        for run, ids in observed.items()
        if run in truth
        and [sequence[:-1] for sequence in ids] != [sequence[:-1] for sequence in truth[run]]
    }

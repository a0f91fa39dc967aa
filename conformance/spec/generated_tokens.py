"""The tokens that a run generated, and whether they are the reference's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from conformance.spec.records import CHOSEN, DEFINITION, Precision, Site

if TYPE_CHECKING:
    from torch import Tensor

#: The prefix of a baseline run in float32; the others compute in bf16.
FLOAT32_WAY = "float32_"

#: Token ids by run ("", "clean", "edited"), one tuple per prompt.
Continuation = dict[str, tuple[tuple[int, ...], ...]]


def continuation(values: Mapping[str, Tensor], prompts: int) -> Continuation:
    """Return the generated ids among observations by site; {} if a scenario keeps none."""
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
    """Return the reference's observations, named `member|site`, by member and site."""
    members: dict[str, dict[str, Tensor]] = {}
    for key, value in values.items():
        member, _, site = key.partition("|")
        members.setdefault(member, {})[site] = value
    return members


def in_precision(member: str, precision: Precision) -> bool:
    """Return whether a member of the reference is a baseline run in this precision."""
    if member in {"truth", "aux"} or member.startswith(DEFINITION):
        return False
    return member.startswith(FLOAT32_WAY) is (precision is Precision.FLOAT32)


def differing(observed: Continuation, reference: Continuation) -> Continuation:
    """Return the observed runs whose tokens differ from those of the same run in the reference."""
    return {run: ids for run, ids in observed.items() if run in reference and ids != reference[run]}

"""What a hypothesis about a wrong value consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.records import Site


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value the truth holds [T, D], and what honest runs scatter around it [T]."""

    rows: Tensor
    noise: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One observation that is off, and everything it might be mistaken for."""

    site: Site
    rows: Tensor
    known: Mapping[Site, Known]
    auxiliary: Mapping[Site, Tensor]

    @property
    def own(self) -> Known:
        return self.known[self.site]


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """`kind` names it for programs, `words` complete the sentence "it holds …", and `source`
    is the layer or step of the truth whose value it is, where it is one's.

    rows [T, D] is the prediction, noise [T] its uncertainty; rows that the hypothesis
    says nothing about are not `valid`.
    """

    kind: str
    words: str
    rows: Tensor
    noise: Tensor
    valid: Tensor
    source: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hypothesis that fits, and how well: the root mean square ratio to its noise."""

    kind: str
    words: str
    ratio: float
    source: str = ""


def predict(
    scene: Scene, kind: str, words: str, rows: Tensor, noise: Tensor, source: str = ""
) -> Hypothesis:
    """A prediction cut or filled to the length of what was observed."""
    length, count = len(scene.rows), min(len(scene.rows), len(rows))
    valid = torch.arange(length) < count
    if len(rows) < length:
        rows = torch.cat([rows, torch.zeros_like(rows[:1]).expand(length - count, -1)])
        noise = torch.cat([noise, torch.ones_like(noise[:1]).expand(length - count)])
    return Hypothesis(kind, words, rows[:length], noise[:length], valid, source)


def differ_only_in(site: Site, other: Site, field: str) -> bool:
    """Do the two sites differ in this field and in no other?"""
    return replace(site, **{field: getattr(other, field)}) == other

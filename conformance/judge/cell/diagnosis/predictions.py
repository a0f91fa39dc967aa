"""A failed observation, what it may have been confused with, and hypotheses about what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics
from conformance.spec.records import Site


@dataclass(frozen=True, eq=False)
class NoisyRows:
    """A value of the reference [T, D], and its noise over the baseline runs [T]."""

    rows: Tensor
    noise: Tensor

    @cached_property
    def bulk(self) -> Tensor:
        """Which dimensions of each row are not massive: bool [T, D]."""
        return metrics.bulk(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One observation that is off, and all values it may have been confused with."""

    site: Site
    rows: Tensor
    known: Mapping[Site, NoisyRows]
    auxiliary: Mapping[Site, Tensor]

    @property
    def own(self) -> NoisyRows:
        return self.known[self.site]


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """A prediction of what a wrong observation holds.

    `kind` names it for programs, `words` complete the sentence "it holds …". `source` is the layer
    or step of the reference that holds the value, if there is one. rows [T, D] is the prediction,
    noise [T] its uncertainty; `valid` excludes rows that it says nothing about.
    """

    kind: str
    words: str
    rows: Tensor
    noise: Tensor
    valid: Tensor
    source: str = ""


def predict(
    scene: Scene, kind: str, words: str, rows: Tensor, noise: Tensor, source: str = ""
) -> Hypothesis:
    """Return a prediction, cut or padded to the length of the observation."""
    length, count = len(scene.rows), min(len(scene.rows), len(rows))
    valid = torch.arange(length) < count
    if len(rows) < length:
        rows = torch.cat([rows, torch.zeros_like(rows[:1]).expand(length - count, -1)])
        noise = torch.cat([noise, torch.ones_like(noise[:1]).expand(length - count)])
    return Hypothesis(kind, words, rows[:length], noise[:length], valid, source)


def differ_only_in(site: Site, other: Site, field: str) -> bool:
    """Return whether the two sites differ in this field and no other."""
    return replace(site, **{field: getattr(other, field)}) == other

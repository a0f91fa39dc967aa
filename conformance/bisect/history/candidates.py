"""Candidates that a search tries, in order from the good end to the bad end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conformance.records import record


@record()
class Candidate:
    """One candidate. `key` identifies it in a search, `label` is for people, and `requirements` are
    the exact pins of its environment.
    """

    key: str
    label: str
    requirements: tuple[str, ...]


def requirements(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Return what these candidates install, without duplicates."""
    return tuple(dict.fromkeys(words for one in candidates for words in one.requirements))


class CandidateSeries(NamedTuple):
    """Candidates of one subject. If `backwards`, the good end is the newer one. `locks` holds both
    lock files if the search is between lock files.
    """

    subject: str
    candidates: tuple[Candidate, ...]
    backwards: bool = False
    locks: tuple[Mapping[str, str], ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """Return everything that the search would install, without duplicates."""
        return requirements(self.candidates)

"""What a search goes along: candidates in a row, the good end first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conformance.records import record


@record()
class Candidate:
    """`key` is its own in a search, `label` is for people, `requirements` are those of its
    environment: each exact.
    """

    key: str
    label: str
    requirements: tuple[str, ...]


def requirements(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """What is installed where all of these are tried, each once."""
    return tuple(dict.fromkeys(words for one in candidates for words in one.requirements))


class Row(NamedTuple):
    """Candidates of one subject. `backwards`: the good end is the newer one. `locks` are both
    lock files, where they are what is searched.
    """

    subject: str
    candidates: tuple[Candidate, ...]
    backwards: bool = False
    locks: tuple[Mapping[str, str], ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """All that the search would have installed, each once."""
        return requirements(self.candidates)

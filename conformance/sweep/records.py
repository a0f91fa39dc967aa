"""What a sweep found, as records: `sweep.json` is one `Trend`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from conformance.records import Verdict, record
from conformance.sweep.points import Point

SCHEMA = "conformance-sweep/1"


@record()
class Mark:
    """A scenario on one model and backend at one point: how its cases ended.

    `bits` numbers what was observed: equal numbers in a row are bitwise equal observations;
    0 where nothing was.
    """

    point: str
    verdict: Verdict
    cells: int
    passed: int
    words: str = ""
    bits: int = 0


@record()
class Row:
    """One scenario, or "" for what the engine said of itself, along all points in order."""

    model: str
    architecture: str
    backend: str
    scenario: str
    marks: tuple[Mark, ...]

    @property
    def changed_at(self) -> tuple[int, ...]:
        """Which marks stand for other bits than the last one before that observed anything."""
        changes, last = [], 0
        for at, mark in enumerate(self.marks):
            if mark.bits and last not in (0, mark.bits):
                changes.append(at)
            last = mark.bits or last
        return tuple(changes)


@record()
class Change:
    """What one step of one package's version changed, in which scenarios of which columns.

    `at` names the versions of the other packages with which it did, "" for all of them.
    """

    model: str
    package: str
    before: str
    after: str
    what: str
    backends: tuple[str, ...]
    scenarios: tuple[str, ...]
    at: str = ""


@record()
class Explained:
    """Cells that did not pass, alike in verdict and words. `expected` is what known.yaml says."""

    verdict: Verdict
    words: str
    models: tuple[str, ...]
    backends: tuple[str, ...]
    points: tuple[str, ...]
    scenarios: tuple[str, ...]
    cells: int
    example: str
    command: str
    blamed: str = ""
    expected: str = ""


@record()
class Engine:
    """What an engine was at each point: its class and the layout of its stream."""

    model: str
    backend: str
    said: tuple[str, ...]


@record()
class Trend:
    """`sweep.json`, whole."""

    schema: str
    run: str
    axes: Mapping[str, tuple[str, ...]]
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    engines: tuple[Engine, ...]
    changes: tuple[Change, ...]
    explained: tuple[Explained, ...]
    seconds: float
    cells: int
    verdicts: Mapping[str, int] = field(default_factory=dict)

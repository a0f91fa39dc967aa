"""The table of the last self-test, as the page shows it: how far this matrix can be trusted.

Read as plain JSON from `selftest.json`, beside the run or beside all runs: the page of any
run can show it, and a file of another version is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "selftest.json"
SCHEMA = "conformance-selftest/1"
#: How an injection ended → the family of looks that says so.
_FAMILY = {
    "caught": "pass",
    "not flagged": "pass",
    "missed": "wrong",
    "flagged": "wrong",
    "below the bound": "doubt",
    "not expressible": "neutral",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How many injections ended so, and with which verdicts."""

    ending: str
    count: int
    verdicts: str

    @property
    def family(self) -> str:
        return _FAMILY.get(self.ending, "neutral")


@dataclass(frozen=True, slots=True)
class Line:
    """One fault in one scenario, a list of endings a backend."""

    fault: str
    side: str
    scenario: str
    endings: tuple[tuple[Ended, ...], ...]


@dataclass(frozen=True, slots=True)
class Tested:
    """What the page says of a self-test."""

    date: str
    models: tuple[str, ...]
    backends: tuple[str, ...]
    rates: tuple[tuple[str, str], ...]
    broken: tuple[str, ...]
    lines: tuple[Line, ...]
    misses: tuple[tuple[str, str], ...]


def read(folder: Path) -> Tested | None:
    """The self-test that lies in a run's folder, else the last one of all runs."""
    for path in (folder / FILE, folder.parent / FILE):
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and found.get("schema") == SCHEMA:
            return tested(found)
    return None


def tested(found: Mapping[str, Any]) -> Tested:
    """The page's view of a stored table."""
    rows = found["rows"]
    backends = tuple(dict.fromkeys(row["backend"] for row in rows))
    lines = []
    for fault, scenario in dict.fromkeys((row["fault"], row["scenario"]) for row in rows):
        own = [row for row in rows if (row["fault"], row["scenario"]) == (fault, scenario)]
        endings = tuple(
            _endings([row for row in own if row["backend"] == backend]) for backend in backends
        )
        lines.append(Line(fault, own[0]["side"], scenario, endings))
    return Tested(
        date=found["date"],
        models=tuple(dict.fromkeys(row["model"] for row in rows)),
        backends=backends,
        rates=tuple(_rates(found["totals"])),
        broken=tuple(found["broken"]),
        lines=tuple(lines),
        misses=tuple(
            (f"{row['fault']} on {row['model']} × {row['backend']}", row["reason"])
            for row in rows
            if row["ending"] in {"missed", "flagged"}
        ),
    )


def _endings(rows: Sequence[Mapping[str, Any]]) -> tuple[Ended, ...]:
    counted = Counter(row["ending"] for row in rows)
    return tuple(
        Ended(
            ending,
            count,
            ", ".join(dict.fromkeys(row["verdict"] for row in rows if row["ending"] == ending)),
        )
        for ending, count in counted.items()
    )


def _rates(totals: Mapping[str, Any]) -> list[tuple[str, str]]:
    named = [
        ("caught with the right verdict", totals["detected"]),
        ("wrong tensors explained", totals["diagnosed"]),
        *((f"blamed on the {side} rightly", rate) for side, rate in totals["sides"].items()),
        ("false alarms", totals["alarms"]),
    ]
    said = [(name, _rate(rate)) for name, rate in named if rate["total"]]
    below = f"{totals['below']} injections, too small for the printed bound"
    return [*said, ("not counted", below)] if totals["below"] else said


def _rate(rate: Mapping[str, Any]) -> str:
    interval = f"95 % interval {rate['low']:.1%} to {rate['high']:.1%}"
    return f"{rate['count']} of {rate['total']} ({interval})"

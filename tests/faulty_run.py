"""Plan a run of faulty engines; as a program, run it: a parent that a test can kill.

    python -m tests.faulty_run FOLDER ENGINE …

It prints a JSON object at its end.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.runner.scheduling import Launch, Planned, TimeLimits, run
from conformance.runner.store import GroupFolder
from conformance.spec.records import Backend, Case, Column, Job, Model, Outcome

SCENARIOS = Path(__file__).parent / "faulty_scenarios"
CASES = ("first", "bad", "last")

#: Short, but long enough for a busy machine: a healthy cell takes milliseconds.
LIMITS = TimeLimits(cell=4.0, load=6.0, close=1.5, imports=60.0)


def job(
    engine: str,
    folder: Path,
    *,
    cases: Sequence[str] = CASES,
    scenarios: Path = SCENARIOS,
    options: Mapping[str, Any] | None = None,
    expect: Mapping[str, Any] | None = None,
) -> Job:
    """A job of `tests.faulty` whose group lies in `folder`/<engine>."""
    places = {"folder": str(folder), "noted": str(folder / f"noted-{engine}")}
    return Job(
        engine=f"tests.faulty:{engine}",
        model=Model("m", "llama", ()),
        column=Column(Backend(engine, engine, options={**places, **(options or {})})),
        checkpoint=folder,
        folder=group(folder, engine).path,
        scenarios=scenarios,
        cases=tuple(Case("plain", name, ("a", "b")) for name in cases),
        expect=expect or {},
        digest="c0ffee",
    )


def group(folder: Path, engine: str) -> GroupFolder:
    return GroupFolder(folder / "groups" / "m" / engine)


def outcome_of(folder: Path, engine: str, case: str) -> Outcome:
    found = group(folder, engine).outcome(f"plain.{case}")
    assert found is not None, f"{engine}: {case} has no outcome"
    return found


def noted(folder: Path, engine: str) -> list[str]:
    """The cases that were run, as often as they were."""
    path = folder / f"noted-{engine}"
    return (
        [line.removeprefix("plain.") for line in path.read_text().split()] if path.exists() else []
    )


def planned(
    engine: str, folder: Path, *, launch: Launch | None = None, cached: bool = False, **more: Any
) -> Planned:
    # Who observes a tensor imports torch: before its cell, which has seconds.
    preload = "" if more.get("options", {}).get("refuse") else "torch"
    return Planned(
        engine,
        lambda: job(engine, folder, **more),
        launch or Launch(preload=preload),
        cached=cached,
    )


def refusing(engine: str, folder: Path, *, launch: Launch | None = None, **more: Any) -> Planned:
    """An engine that refuses every good case, for which nothing is imported."""
    cases = more.pop("cases", CASES)
    one = planned(engine, folder, launch=launch, options={"refuse": True}, cases=cases)
    return replace(one, **more)


def run_all(folder: Path, engines: Sequence[str]) -> dict[str, object]:
    """Run these engines, which refuse every good case; return what the summary says."""
    summary = run(
        [refusing(engine, folder) for engine in engines],
        logs=folder / "logs",
        jobs=4,
        limits=TimeLimits(),
    )
    names = ("interrupted", "finished", "resumed")
    return {name: getattr(summary, name) for name in names}


if __name__ == "__main__":
    # A shell starts its background jobs with Ctrl-C ignored, and a test suite may be one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(json.dumps(run_all(Path(sys.argv[1]), sys.argv[2:])))

"""What a run's plan would have executed that neither this installation nor the user names.

A run folder is data: it may come from a colleague, a build server or an archive. Yet its plan
names scenario files to import, interpreters to start and engine modules to load. They are taken
from a plan only where they are what the installation has or the command line names; anything else
is listed, and needs the user's word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance import manifest as manifests
from conformance.engines import ENGINES
from conformance.errors import ConformanceError
from conformance.records import Backend, Column
from conformance.scenario import Places, folders_of
from conformance.store import RunPlan

_REMEDY = (
    "name --scenarios and --models as the run did, or, if you know where it is from, add --trust"
)


def check(plan: RunPlan, path: Path, *, scenarios: Places, manifest: Path, cache: Path) -> None:
    """Raises ConformanceError that lists what is foreign in the plan of the run at `path`.

    `scenarios` and `manifest` are what the command line names, `cache` holds the environments
    that were built here.
    """
    known = _backends(manifest)
    strange = [*_scenarios(plan, scenarios)]
    for column in plan.columns:
        strange += _column(column, known, cache)
    if strange:
        lines = "".join(f"\n  {line}" for line in dict.fromkeys(strange))
        raise ConformanceError(
            f"the plan of this run has code executed that is not this installation's:{lines}",
            path=path,
            remedy=_REMEDY,
        )


def _scenarios(plan: RunPlan, named: Places) -> Iterator[str]:
    for folder in folders_of(plan.scenarios):
        if folder not in folders_of(named):
            yield f"scenarios imported from {str(folder)!r}"


def _column(column: Column, known: dict[str, Backend], cache: Path) -> Iterator[str]:
    backend = column.backend
    own = known.get(backend.id)
    if backend.engine not in ENGINES and (own is None or own.engine != backend.engine):
        yield f"column {column.id!r}: the engine {backend.engine!r}"
    if backend.environment and (own is None or own.environment != backend.environment):
        yield f"column {column.id!r}: the interpreter {backend.environment!r}"
    # vLLM takes classes by name among its options.
    if backend.options and (own is None or own.options != backend.options):
        yield f"column {column.id!r}: the engine's options {dict(backend.options)!r}"
    if column.python and not _built_here(column.python, cache):
        yield f"column {column.id!r}: the interpreter {column.python!r}"


def _built_here(python: str, cache: Path) -> bool:
    # As it is written: the interpreter of an environment is a link to the one it was made with.
    place = Path(os.path.normpath(Path(python).absolute()))
    return place == Path(sys.executable) or (cache / "environments").absolute() in place.parents


def _backends(manifest: Path) -> dict[str, Backend]:
    if not manifest.exists():
        return {}
    return {backend.id: backend for backend in manifests.load(manifest).backends}

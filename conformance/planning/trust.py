"""What a run's files would have executed that neither this installation nor the user names.

A run folder is data: it may come from a colleague, a build server or an archive. Yet it names
scenario files to import, interpreters to start, engine modules to load and weights. They are taken
from it only where they are what the installation has or the command line names; anything else
is listed, and needs the user's word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conformance.engines import ENGINES
from conformance.errors import ConformanceError
from conformance.inputs import manifest as manifests
from conformance.inputs.manifest import Manifest
from conformance.records import Backend, Column, Model
from conformance.scenario import Places, folders_of
from conformance.store import RunPlan

_REMEDY = "name {} as the run did, or, if you know where it is from, add --trust"


def check(plan: RunPlan, path: Path, *, scenarios: Places, manifest: Path, cache: Path) -> None:
    """Raises ConformanceError that lists what is foreign in the plan of the run at `path`.

    `scenarios` and `manifest` are what the command line names, `cache` holds the environments
    that were built here.
    """
    known = _manifest(manifest)
    strange = [*_scenarios(plan, scenarios), *_columns(plan.columns, known, cache)]
    described = "the plan of this run has code executed that"
    _refuse(strange, described, path, named="--scenarios and --models")


def check_script(
    model: Model, columns: Sequence[Column], path: Path, *, manifest: Path, cache: Path
) -> None:
    """The same of a script of one cell, which runs this model on these columns and holds its
    scenario: weights that `manifest` does not name count too.
    """
    known = _manifest(manifest)
    strange = [*_weights(model, known), *_columns(columns, known, cache)]
    _refuse(strange, "a script of this cell would start or load what", path, named="--models")


def _refuse(strange: Iterable[str], described: str, path: Path, *, named: str) -> None:
    lines = "".join(f"\n  {line}" for line in dict.fromkeys(strange))
    if lines:
        raise ConformanceError(
            f"{described} is not this installation's:{lines}",
            path=path,
            remedy=_REMEDY.format(named),
        )


def _scenarios(plan: RunPlan, named: Places) -> Iterator[str]:
    for folder in folders_of(plan.scenarios):
        if folder not in folders_of(named):
            yield f"scenarios imported from {str(folder)!r}"


def _weights(model: Model, known: Manifest) -> Iterator[str]:
    if all(own.id != model.id or own.sources != model.sources for own in known.models):
        yield f"model {model.id!r}: weights of another source"


def _columns(columns: Iterable[Column], known: Manifest, cache: Path) -> Iterator[str]:
    own = {backend.id: backend for backend in known.backends}
    for column in columns:
        yield from _column(column, own.get(column.backend.id), cache)


def _column(column: Column, own: Backend | None, cache: Path) -> Iterator[str]:
    backend = column.backend
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


def _manifest(path: Path) -> Manifest:
    return manifests.load(path) if path.exists() else Manifest((), ())

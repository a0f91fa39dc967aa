"""What a run's files would execute that neither this installation nor the user named.

A run folder is data: it may come from a colleague, a build server or an archive. Yet it names
scenario files to import, interpreters to start, engine modules to load, packages to install and
weights; a check's folder holds the user's own code. Code that executes any of it collects it in an
`Executed` and calls `require_known`. That accepts what the installation has, what the command line
names, and what a command line of this user named before (`note`). It lists anything else, which
needs the user's consent.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.engines import ENGINES
from conformance.errors import ConformanceError
from conformance.runner.store import RunPlan
from conformance.runner.store.files import write_text
from conformance.spec import regular_file
from conformance.spec.inputs import manifest as manifests
from conformance.spec.inputs.manifest import Manifest
from conformance.spec.records import Backend, Column, Model, Source, digest, to_json
from conformance.spec.scenario import Places, folders_of

_NOTES = "named"
_TRUST = "if you know where it is from, add --trust"


@dataclass(frozen=True)
class Executed:
    """What a run's files would import (`scenarios`), install (`requirements`) and load.

    `code` is what a script contains or reads, `checkpoints` are folders of weights.
    """

    models: tuple[Model, ...] = ()
    columns: tuple[Column, ...] = ()
    scenarios: Places = ()
    requirements: tuple[str, ...] = ()
    code: tuple[Path, ...] = ()
    checkpoints: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Named:
    """What the command line names; `cache` holds what was built here, and the notes."""

    manifest: Path
    cache: Path
    scenarios: Places = ()
    requirements: tuple[str, ...] = ()


#: A foreign item, and the command-line option that would name it, "" if there is none.
_Foreign = tuple[str, str]


def of_plan(plan: RunPlan, requirements: Sequence[str] = ()) -> Executed:
    """Return what continuing this plan executes and installs."""
    return Executed(plan.models, plan.columns, plan.scenarios, tuple(requirements))


def require_known(executed: Executed, path: Path, named: Named) -> None:
    """Raise ConformanceError listing what is foreign in the files of the run at `path`."""
    strange = dict.fromkeys(_foreign(executed, named))
    if not strange:
        return
    lines = "".join(f"\n  {words}" for words, _ in strange)
    options = " and ".join(dict.fromkeys(option for _, option in strange if option))
    raise ConformanceError(
        f"this run's files would start, install or load what is not this installation's:{lines}",
        path=path,
        remedy=f"name {options} as the run did, or, {_TRUST}" if options else _TRUST,
    )


def note(cache: Path, executed: Executed) -> None:
    """Record that a command line here named these, so that a later one need not.

    Without a writable cache it must.
    """
    lines = [
        *(_weights(source) for model in executed.models for source in model.sources),
        *map(_requirement, executed.requirements),
        *map(_content, executed.code),
    ]
    with suppress(OSError):
        if lines:
            write_text(cache / _NOTES / f"{digest(lines)}.txt", "\n".join(lines))


def _weights(source: Source) -> str:
    return f"weights {to_json(source)}"


def _requirement(words: str) -> str:
    return f"requirement {words!a}"


def _content(path: Path) -> str:
    """Return the note for a file. Raises ConformanceError if it cannot be read."""
    try:
        content = regular_file.read_bytes(path)
    except OSError as error:
        raise ConformanceError(
            f"cannot be read: {error.strerror}",
            path=path,
            remedy="put the file back where the run has it, or check your own files again",
        ) from error
    return f"file {hashlib.sha256(content).hexdigest()}"


def _foreign(executed: Executed, named: Named) -> Iterator[_Foreign]:
    noted: set[str] = set()
    for note_file in (named.cache / _NOTES).glob("*.txt"):
        with suppress(OSError, ValueError):
            noted.update(note_file.read_text(encoding="utf-8").split("\n"))
    yield from _of_manifest(executed, named, noted)
    for folder in folders_of(executed.scenarios):
        if folder not in folders_of(named.scenarios):
            yield f"scenarios imported from {str(folder)!r}", "--scenarios"
    for words in executed.requirements:
        if words not in named.requirements and _requirement(words) not in noted:
            yield f"installed: {words!r}", "the versions"
    for path in executed.code:
        if _content(path) not in noted:
            yield f"the code or data in {str(path)!r}", ""
    for folder in executed.checkpoints:
        if (named.cache / "checkpoints").absolute() not in _as_written(folder).parents:
            yield f"weights loaded from {str(folder)!r}", ""


def _of_manifest(executed: Executed, named: Named, noted: set[str]) -> Iterator[_Foreign]:
    known = manifests.load(named.manifest) if named.manifest.exists() else Manifest((), ())
    own = {model.id: model.sources for model in known.models}
    for model in executed.models:
        all_noted = model.sources and {_weights(source) for source in model.sources} <= noted
        if own.get(model.id) != model.sources and not all_noted:
            yield f"model {model.id!r}: weights of another source", "--models"
    backends = {backend.id: backend for backend in known.backends}
    for column in executed.columns:
        for words in _column(column, backends.get(column.backend.id), named.cache):
            yield f"column {column.id!r}: {words}", "--models"


def _column(column: Column, own: Backend | None, cache: Path) -> Iterator[str]:
    backend = column.backend
    if backend.engine not in ENGINES and (own is None or own.engine != backend.engine):
        yield f"the engine {backend.engine!r}"
    if backend.environment and (own is None or own.environment != backend.environment):
        yield f"the interpreter {backend.environment!r}"
    # vLLM loads classes named in its options.
    if backend.options and (own is None or own.options != backend.options):
        yield f"the engine's options {dict(backend.options)!r}"
    python = _as_written(Path(column.python))
    here = python == Path(sys.executable) or (cache / "environments").absolute() in python.parents
    if column.python and not here:
        yield f"the interpreter {column.python!r}"


def _as_written(path: Path) -> Path:
    # Follow no link: an environment's interpreter is a link to the one that made it.
    return Path(os.path.normpath(path.absolute()))

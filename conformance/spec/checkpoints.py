"""Obtain model weights: a cache of sealed folders that every engine loads alike.

A checkpoint's folder is named after its inputs (source, architecture, builder). It is built under a
temporary name and renamed into place, so that several builders can work at once. It holds a seal:
the digest of each file. The parent only looks (`locate`); a worker builds (`obtain`), because
building needs transformers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import platformdirs
from pydantic import ValidationError

from conformance.errors import ConformanceError, ExitCode
from conformance.spec.cached_folder import building, file_digest, publish
from conformance.spec.records import Model, Source, digest, from_json, record, to_json
from conformance.spec.wheels import FETCH_SECONDS, fetch

SEAL = "checkpoint.json"

#: Timeout in seconds for converting what was fetched.
CONVERT_SECONDS = 300.0

_BUILDING = Path(__file__).parent.parent / "engines" / "building"
_BUILDER = (_BUILDING / "checkpoint_builder.py", _BUILDING / "changed_weights.py")


@record()
class Checkpoint:
    """A folder with a config, a tokenizer and bf16 safetensors. `digest` covers its contents."""

    path: Path
    digest: str
    source: str
    architecture: str
    layers: int
    width: int


@record()
class CheckpointShape:
    """What a builder reports about its model: the count of decoder layers, the residual width."""

    layers: int
    width: int


@record()
class _File:
    size: int
    mtime_ns: int
    sha256: str


@record()
class _Seal:
    source: str
    architecture: str
    layers: int
    width: int
    files: Mapping[str, _File]


class Build(Protocol):
    """Writes a checkpoint into an empty folder; `material` are its pieces' wheels."""

    def __call__(
        self, source: Source, architecture: str, folder: Path, material: Sequence[Path]
    ) -> CheckpointShape: ...


def cache_folder() -> Path:
    """Return `CONFORMANCE_CACHE`, or this project's folder in the user's cache home."""
    chosen = os.environ.get("CONFORMANCE_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("conformance")


def describe(source: Source) -> str:
    """Return a short description of the source, for people."""
    kinds = " quantised" * bool(source.quantized) + " with an adapter" * bool(source.adapter)
    return {
        "tiny": f"tiny{kinds}, seed {source.seed}",
        "wheel": ", ".join(f"{piece.package}:{piece.file}" for piece in source.pieces),
        "path": source.file,
        "hub": f"hub:{source.repo}@{source.revision}",
    }[source.kind]


def place(source: Source, architecture: str, cache: Path) -> Path:
    """Return the folder for this source's checkpoint. It also depends on the builder's version."""
    code = b"".join(path.read_bytes() for path in _BUILDER)
    builder = hashlib.sha256(code).hexdigest()[:12]
    made_from = [to_json(source), architecture, builder]
    return cache / "checkpoints" / f"{architecture}-{digest(made_from)}"


def patience(model: Model) -> float:
    """Return the time limit in seconds for making this model's checkpoint."""
    return sum(
        max(len(source.pieces), 1) * FETCH_SECONDS + CONVERT_SECONDS for source in model.sources
    )


def locate(model: Model, cache: Path, *, deep: bool = False) -> Checkpoint | None:
    """Return the model's checkpoint if it is cached and intact, else None: it must be built.

    A file whose size and time match the seal is trusted, unless `deep`; any other is compared by
    digest. An existing local folder takes precedence over a cached source that the manifest names
    after it.
    """
    for source in model.sources:
        if found := find_checkpoint(place(source, model.architecture, cache), deep=deep):
            return found
        if source.kind == "path" and Path(source.file).is_dir():
            return None
    return None


def obtain(model: Model, cache: Path, build: Build) -> Checkpoint:
    """Return the model's checkpoint, built from the first source that works if it is not cached.

    Raises ConformanceError with the reason of every source if none works.
    """
    if found := locate(model, cache):
        return found
    reasons = []
    for source in model.sources:
        try:
            return _make(source, model.architecture, cache, build)
        except Exception as error:  # noqa: BLE001 - try the next source; report all reasons
            reasons.append(f"{describe(source)}: {error or type(error).__name__}")
    raise ConformanceError(
        f"no source of model {model.id!r} works:\n  " + "\n  ".join(reasons),
        remedy="fix one of them, or add `- path: <local folder>` to its sources in models.yaml",
        code=ExitCode.UNEXPECTED,
    )


def find_checkpoint(folder: Path, *, deep: bool = False) -> Checkpoint | None:
    """Return the checkpoint in this folder, None if it is absent or damaged."""
    try:
        sealed = from_json(_Seal, (folder / SEAL).read_bytes())
        intact = all(_intact(folder / name, file, deep) for name, file in sealed.files.items())
    except (OSError, ValidationError):
        return None
    if not intact or not sealed.files:
        return None
    contents = digest({name: file.sha256 for name, file in sealed.files.items()})
    return Checkpoint(
        folder, contents, sealed.source, sealed.architecture, sealed.layers, sealed.width
    )


def store(name: str, cache: Path, write: Callable[[Path], None]) -> Path:
    """Store a checkpoint in the cache. `write` gets an empty folder and writes the checkpoint's
    files and its seal into it.

    Raises ConformanceError if a file is missing or damaged.
    """
    final = cache / "checkpoints" / name
    with building(final) as folder:
        write(folder)
        if find_checkpoint(folder) is None:
            raise ConformanceError(f"the checkpoint {name} is incomplete")
        publish(folder, final, lambda: find_checkpoint(final) is not None)
    return final


def _make(source: Source, architecture: str, cache: Path, build: Build) -> Checkpoint:
    material = [fetch(piece, cache) for piece in source.pieces]

    def write(folder: Path) -> None:
        shape = build(source, architecture, folder, material)
        seal(folder, describe(source), architecture, shape)

    final = store(place(source, architecture, cache).name, cache, write)
    made = find_checkpoint(final)
    if made is None:
        raise ConformanceError(
            f"{final} does not hold what was just written there", code=ExitCode.HARNESS
        )
    return made


def seal(folder: Path, source: str, architecture: str, shape: CheckpointShape) -> None:
    """Write the digest of every file into the folder's seal."""
    files = {
        path.relative_to(folder).as_posix(): _File(
            path.stat().st_size, path.stat().st_mtime_ns, file_digest(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    written = _Seal(source, architecture, shape.layers, shape.width, files)
    (folder / SEAL).write_text(to_json(written, indent=1), encoding="utf-8")


def _intact(path: Path, sealed: _File, deep: bool) -> bool:
    status = path.stat()
    trusted = status.st_mtime_ns == sealed.mtime_ns and not deep
    return status.st_size == sealed.size and (trusted or file_digest(path) == sealed.sha256)

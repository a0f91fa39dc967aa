"""Atomic writes, and readers that say what is wrong with a file."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from conformance.errors import ConformanceError
from conformance.spec import regular_file
from conformance.spec.records import from_json, to_json

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_][\w.+~=,@-]*", re.ASCII)


def safe(name: str) -> str:
    """Return `name` if it can name a folder. Raises ConformanceError otherwise."""
    if _NAME.fullmatch(name) is None:
        raise ConformanceError(
            f"{name!r} cannot name a folder",
            remedy="use letters, digits and any of . + ~ = , @ - _ after the first character",
        )
    return name


def link(place: Path, target: Path) -> None:
    """Create a symbolic link at `place` to `target`, both in one run, unless there is one.

    The link is relative, so it survives when the run is moved.
    """
    if not place.is_symlink():
        place.symlink_to(os.path.relpath(target, place.parent))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Provide a path for a new file, which takes this one's place at the end by a rename: a reader
    finds the old file or the new one, never a part.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_record(path: Path, record: object) -> None:
    write_text(path, to_json(record, indent=1) + "\n")


def read_record(
    kind: type[T],
    path: Path,
    *,
    upgrade: Callable[[bytes], bytes] = lambda text: text,
    mistake: Callable[[T], str] = lambda _: "",
) -> T | None:
    """Read the record in this file; None if there is no file.

    `upgrade` converts the text of an earlier version. `mistake` says what is wrong with the record
    as a whole, "" if nothing. Raises ConformanceError for a file that does not hold one.
    """
    text = read_bytes(path)
    if text is None:
        return None
    found = record_in(kind, upgrade(text), path)
    if words := mistake(found):
        raise _invalid(kind, path, words)
    return found


def read_bytes(path: Path) -> bytes | None:
    """Return a file's content; None if there is no file. Raises ConformanceError for a folder."""
    try:
        return regular_file.read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConformanceError(
            f"cannot be read: {error.strerror}", path=path, remedy="make it a readable regular file"
        ) from error


def record_in(kind: type[T], text: bytes, path: Path) -> T:
    """Parse the record in this text of a file. Raises ConformanceError if it holds none."""
    try:
        return from_json(kind, text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        words = f"{f'{place}: ' if place else ''}{first['msg']}"
        raise _invalid(kind, path, words) from error


def _invalid(kind: type[Any], path: Path, words: str) -> ConformanceError:
    return ConformanceError(
        f"holds no valid {kind.__name__}: {words}",
        path=path,
        remedy="the file is damaged or of another version: remove it and run again",
    )


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Save tensors of any device and layout; views of one storage become copies."""
    import torch
    from safetensors.torch import save_file

    with torch.no_grad():
        contiguous = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
    with replacing(path) as part:
        save_file(contiguous, part)


def as_reals(tensor: Tensor) -> Tensor:
    """Return complex [..., n] as real [..., 2n]; a single number becomes two.

    Differences keep their length, which is all that a judge needs.
    """
    import torch

    if not tensor.is_complex():
        return tensor
    pairs = torch.view_as_real(tensor.resolve_conj())
    return pairs.flatten(-2) if tensor.ndim else pairs


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors in a file, complex numbers as pairs of real ones.

    Raises ConformanceError for a file that is absent or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        # Reading thousands of small tensors at once costs a third less than mapping them. The order
        # in the file is arbitrary, and sums must not depend on it in the last digit.
        read = sorted(load(regular_file.read_bytes(path)).items())
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ConformanceError(
            f"no observations can be read: {error}",
            path=path,
            remedy="remove the cell's folder and run again with --resume",
        ) from error
    return {name: as_reals(tensor) for name, tensor in read}

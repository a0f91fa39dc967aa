"""Source trees: their relevant files, their commits, and copies of them to build from.

Builds leave files behind (`*.egg-info`, `build/`), so a user's tree is never built in place. Its
relevant files are those that git does not ignore.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.spec.records import record

#: Names that builds and tools leave in a tree, whether git ignores them or not.
_LEFTOVERS = (
    *(".git", ".venv", "__pycache__", "build", "dist", "node_modules"),
    *("*.egg-info", "*.dist-info", ".*_cache"),
)


def digest(path: Path) -> str:
    """Return a digest of a source tree's relevant files, or of a wheel."""
    hashed = hashlib.sha256()
    for name in _files(path):
        file = path / name
        hashed.update(f"{name}\0".encode())
        if file.is_symlink():
            hashed.update(str(file.readlink()).encode())
        elif file.is_file():
            hashed.update(file.read_bytes())
    if path.is_file():
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def commit(path: Path) -> tuple[str, bool]:
    """Return a tree's commit, "" for none, and whether files differ from it."""
    head = _git(path, "rev-parse", "--verify", "--quiet", "HEAD").strip()
    if not head or not path.is_dir() or not _tracked(path):
        return "", False
    changed = _git(path, "status", "--porcelain", "--", ".").splitlines()
    return head, any(not _leftover(line[3:].strip('"')) for line in changed)


def label(path: Path) -> str:
    """Return a short name for a tree: its commit, and a digest if files differ from it."""
    head, changed = commit(path)
    if not head:
        return digest(path)[:7]
    return f"{head[:7]}.{digest(path)[:7]}" if changed else head[:7]


def describe(path: Path) -> str:
    """Return a description such as `/src/nnsight at 0a1b2c3, with changes`."""
    head, changed = commit(path)
    return f"{path}{f' at {head[:12]}' * bool(head)}{', with changes' * changed}"


@record()
class Copies:
    """The addresses of trees and their copies: pairs of `file://` addresses, the tree's first."""

    addresses: tuple[tuple[str, str], ...]

    def into(self, text: str) -> str:
        """Replace the trees' addresses in the text with the copies'."""
        for here, other in self.addresses:
            text = text.replace(here, other)
        return text

    def back(self, text: str) -> str:
        """Replace the copies' addresses in the text with the trees'."""
        for here, other in self.addresses:
            text = text.replace(other, here)
        return text


@contextmanager
def copy_trees(paths: Sequence[Path]) -> Iterator[Copies]:
    """Copy these trees; the copies exist inside the with block."""
    with tempfile.TemporaryDirectory(prefix="conformance-trees-") as folder:
        yield Copies(
            tuple(
                (path.as_uri(), _copy(path, Path(folder, str(index), path.name)).as_uri())
                for index, path in enumerate(path for path in paths if path.is_dir())
            )
        )


def _copy(path: Path, target: Path) -> Path:
    """Copy a tree's files. A git tree stays one, since versions are often taken from its tags."""
    top = Path(_git(path, "rev-parse", "--show-toplevel").strip() or path)
    if not _tracked(path):
        shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns(*_LEFTOVERS))
        return target
    # The clone shares its objects, so it only takes as long as writing the files.
    _git(path, "clone", "--quiet", "--shared", str(top), str(target))
    names = set(_files(top))
    for name in set(_tracked(target)) - names:
        (target / name).unlink(missing_ok=True)
    for name in names:
        source, copy = top / name, target / name
        if source.is_file() or source.is_symlink():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    return target / path.resolve().relative_to(top.resolve())


def _files(path: Path) -> list[str]:
    if not path.is_dir():
        return []
    if names := _tracked(path):
        names += _git_names(path, "--others", "--exclude-standard")
    else:
        for folder, folders, files in os.walk(path):
            folders[:] = [folder for folder in folders if not _leftover(folder)]
            names += [str(Path(folder, file).relative_to(path)) for file in files]
    return sorted({name for name in names if not _leftover(name) and os.path.lexists(path / name)})


def _tracked(path: Path) -> list[str]:
    return _git_names(path, "--cached")


def _git_names(path: Path, *which: str) -> list[str]:
    return [name for name in _git(path, "ls-files", "-z", *which, "--", ".").split("\0") if name]


def _leftover(name: str) -> bool:
    return any(fnmatchcase(part, leftover) for part in Path(name).parts for leftover in _LEFTOVERS)


def _git(path: Path, *words: str) -> str:
    """Return git's output in this folder; "" on failure, as outside of a repository."""
    done = subprocess.run(
        [shutil.which("git") or "git", "-C", path if path.is_dir() else path.parent, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout if done.returncode == 0 else ""

"""Source trees: what of one counts, which commit it is of, and copies of it to build from.

Builds leave files behind (`*.egg-info`, `build/`), so nothing is ever built in a user's own tree,
and what counts of one is what git would track: all but what is ignored.
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

from conformance.records import record

#: What builds and tools leave in a tree, whether git ignores it or not.
_LEFTOVERS = (
    *(".git", ".venv", "__pycache__", "build", "dist", "node_modules"),
    *("*.egg-info", "*.dist-info", ".*_cache"),
)


def digest(path: Path) -> str:
    """A digest of what counts of a source tree, or of a wheel."""
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
    """The commit that a tree is of, "" for none, and whether files differ from it."""
    head = _git(path, "rev-parse", "--verify", "--quiet", "HEAD").strip()
    if not head or not path.is_dir() or not _tracked(path):
        return "", False
    changed = _git(path, "status", "--porcelain", "--", ".").splitlines()
    return head, any(not _leftover(line[3:].strip('"')) for line in changed)


def label(path: Path) -> str:
    """A short name for what is in a tree: its commit, and a digest where files differ from it."""
    head, changed = commit(path)
    if not head:
        return digest(path)[:7]
    return f"{head[:7]}.{digest(path)[:7]}" if changed else head[:7]


def described(path: Path) -> str:
    """`/src/nnsight at 0a1b2c3, with changes`."""
    head, changed = commit(path)
    return f"{path}{f' at {head[:12]}' * bool(head)}{', with changes' * changed}"


@record()
class Copies:
    """Where the copies of trees are: pairs of `file://` addresses, the tree's own first."""

    addresses: tuple[tuple[str, str], ...]

    def into(self, text: str) -> str:
        """The text with the copies' addresses for the trees'."""
        for here, other in self.addresses:
            text = text.replace(here, other)
        return text

    def back(self, text: str) -> str:
        """The text with the trees' own addresses again."""
        for here, other in self.addresses:
            text = text.replace(other, here)
        return text


@contextmanager
def copies(paths: Sequence[Path]) -> Iterator[Copies]:
    """Copies of these trees while the context lasts."""
    with tempfile.TemporaryDirectory(prefix="conformance-trees-") as folder:
        yield Copies(
            tuple(
                (path.as_uri(), _copy(path, Path(folder, str(index), path.name)).as_uri())
                for index, path in enumerate(path for path in paths if path.is_dir())
            )
        )


def _copy(path: Path, target: Path) -> Path:
    """A tree's files as they are. One of git's stays so: versions are often taken from its tags."""
    top = Path(_git(path, "rev-parse", "--show-toplevel").strip() or path)
    if not _tracked(path):
        shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns(*_LEFTOVERS))
        return target
    # Its objects are shared, so this takes as long as writing the files does.
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
    """The names of what counts, in order."""
    if not path.is_dir():
        return []
    tracked = _tracked(path)
    names = tracked + _git_names(path, "--others", "--exclude-standard") if tracked else []
    if not tracked:
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
    """What git says in this folder; nothing where it is none of git's."""
    done = subprocess.run(
        [shutil.which("git") or "git", "-C", path if path.is_dir() else path.parent, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout if done.returncode == 0 else ""

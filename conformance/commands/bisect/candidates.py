"""Candidates that a search tries, from the good end to the bad end: releases or commits."""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.errors import ConformanceError
from conformance.spec.records import record

_SHOWN = 60


@record()
class Candidate:
    """One candidate. `key` identifies it in a search, `label` is for people, and `requirements` are
    the exact pins of its environment.
    """

    key: str
    label: str
    requirements: tuple[str, ...]


def requirements(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Return what these candidates install, without duplicates."""
    return tuple(dict.fromkeys(words for one in candidates for words in one.requirements))


class CandidateSeries(NamedTuple):
    """Candidates of one subject. If `backwards`, the good end is the newer one. `locks` holds both
    lock files if the search is between lock files.
    """

    subject: str
    candidates: tuple[Candidate, ...]
    backwards: bool = False
    locks: tuple[Mapping[str, str], ...] = ()


def list_releases(
    package: str, published: Iterable[str], good: str, bad: str, pinned: Sequence[str]
) -> CandidateSeries:
    """Return the releases from the good one to the bad one, which may be the older one.

    Pre-releases are left out unless they are an end. Of versions that differ only in their local
    part (`+cpu`), one stands for all. Raises ConformanceError for an end that was never released.
    """
    released: dict[Version, str] = {}
    for text in published:
        try:
            released.setdefault(Version(Version(text).public), text)
        except InvalidVersion:
            continue
    first, last = _find_release(released, good), _find_release(released, bad)
    if first == last:
        raise ConformanceError(
            f"both ends are {released[first]}", remedy="name two versions: --good and --bad"
        )
    low, high = sorted((first, last))
    between = sorted(
        release
        for release in released
        if low <= release <= high and (not release.is_prerelease or release in (first, last))
    )
    name = canonicalize_name(package)
    candidates = [
        Candidate(released[each], released[each], (f"{name}=={released[each]}", *pinned))
        for each in between
    ]
    backwards = first > last
    return CandidateSeries(name, tuple(candidates[::-1] if backwards else candidates), backwards)


def _find_release(released: Mapping[Version, str], text: str) -> Version:
    try:
        version = Version(Version(text).public)
    except InvalidVersion as error:
        raise ConformanceError(
            f"{text!r} is no version", remedy="name a release, for example 0.32.0"
        ) from error
    if version not in released:
        near = difflib.get_close_matches(text, released.values(), n=3, cutoff=0.4)
        newest = released[max(released)] if released else "none"
        raise ConformanceError(
            f"there is no release {text}",
            remedy=f"near it: {', '.join(near) or 'none'}; the newest: {newest}",
        )
    return version


def list_commits(
    package: str, repo: Path, good: str, bad: str, pinned: Sequence[str]
) -> CandidateSeries:
    """Return the commits from the good revision to the bad one, which may be the older one.

    Commits follow first parents: a merged branch counts as its merge commit. Each candidate names a
    commit, not a folder, so that nobody can edit it or check out another commit. Raises
    ConformanceError if neither end comes before the other along first parents.
    """
    repo = repo.expanduser().resolve()
    first, last = _find_commit(repo, good), _find_commit(repo, bad)
    if first == last:
        raise ConformanceError(
            f"{good} and {bad} are the same commit", path=repo, remedy="name two commits"
        )
    forwards = _descend(repo, first, last)
    commits = forwards or _descend(repo, last, first)[::-1]
    if not commits:
        raise ConformanceError(
            f"neither of {good} and {bad} comes before the other along first parents",
            path=repo,
            remedy="name two commits of one branch; where it came from: git merge-base",
        )
    name = canonicalize_name(package)
    candidates = tuple(
        Candidate(
            commit,
            f"{commit[:10]} {subject[:_SHOWN]}".strip(),
            (f"{name} @ git+{repo.as_uri()}@{commit}", *pinned),
        )
        for commit, subject in commits
    )
    return CandidateSeries(name, candidates, backwards=not forwards)


def _descend(repo: Path, old: str, new: str) -> tuple[tuple[str, str], ...]:
    """Return the old commit and all that follow up to the new one; () if `new` does not descend."""
    listed = _git(repo, "log", "--first-parent", "--format=%H%x00%s", new)
    lines = [line.partition("\0") for line in listed.splitlines()]
    commits = [commit for commit, _, _ in lines]
    if old not in commits:
        return ()
    return tuple((commit, subject) for commit, _, subject in lines[commits.index(old) :: -1])


def _find_commit(repo: Path, revision: str) -> str:
    # `--end-of-options`: git must not read the user's text as an option.
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return _git(repo, *words, unknown=revision).strip()


def _git(repo: Path, *arguments: str, unknown: str = "") -> str:
    process = subprocess.run(
        ["git", "-C", str(repo), *arguments],  # noqa: S607 - the user's own git
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
    )
    if process.returncode == 0:
        return process.stdout
    errors = process.stderr.strip().splitlines()
    raise ConformanceError(
        errors[-1] if errors else f"there is no commit {unknown!r}",
        path=repo,
        remedy="--repo is a local git repository; --good and --bad are commits, tags or branches",
    )

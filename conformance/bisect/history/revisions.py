"""The commits of a local git repository between two revisions, along first parents."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from conformance.bisect.history.candidates import Candidate, CandidateSeries
from conformance.errors import ConformanceError

_SHOWN = 60


def row(package: str, repo: Path, good: str, bad: str, pinned: Sequence[str]) -> CandidateSeries:
    """Return the commits from the good revision to the bad one, which may be the older one.

    A merged branch counts as its merge commit. Each candidate names a commit, not a folder, so that
    nobody can edit it or check out another commit. Raises ConformanceError if neither end comes
    before the other along first parents.
    """
    repo = repo.expanduser().resolve()
    first, last = _commit(repo, good), _commit(repo, bad)
    if first == last:
        raise ConformanceError(
            f"{good} and {bad} are the same commit", path=repo, remedy="name two commits"
        )
    forwards = _from(repo, first, last)
    commits = forwards or _from(repo, last, first)[::-1]
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


def _from(repo: Path, old: str, new: str) -> tuple[tuple[str, str], ...]:
    """Return the old commit and all that follow up to the new one; () if `new` does not descend."""
    listed = _git(repo, "log", "--first-parent", "--format=%H%x00%s", new)
    lines = [line.partition("\0") for line in listed.splitlines()]
    commits = [commit for commit, _, _ in lines]
    if old not in commits:
        return ()
    return tuple((commit, subject) for commit, _, subject in lines[commits.index(old) :: -1])


def _commit(repo: Path, revision: str) -> str:
    # `--end-of-options`: git must not read the user's text as an option.
    return _git(
        repo,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{revision}^{{commit}}",
        unknown=revision,
    ).strip()


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

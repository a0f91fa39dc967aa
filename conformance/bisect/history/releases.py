"""The released versions of a package between two versions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.bisect.history.candidates import Candidate, CandidateSeries
from conformance.errors import ConformanceError


def between(versions: Iterable[str], good: str, bad: str) -> tuple[str, ...]:
    """Return the versions from the good one to the bad one, which may be the older one.

    Pre-releases are left out unless they are an end. Of versions that differ only in their local
    part (`+cpu`), one stands for all. Raises ConformanceError for an end that was never released.
    """
    released: dict[Version, str] = {}
    for text in versions:
        try:
            released.setdefault(Version(Version(text).public), text)
        except InvalidVersion:
            continue
    first, last = _end(released, good), _end(released, bad)
    if first == last:
        raise ConformanceError(
            f"both ends are {released[first]}", remedy="name two versions: --good and --bad"
        )
    low, high = sorted((first, last))
    releases = sorted(
        release
        for release in released
        if low <= release <= high and (not release.is_prerelease or release in (first, last))
    )
    if first > last:
        releases.reverse()
    return tuple(released[release] for release in releases)


def row(package: str, versions: Sequence[str], pinned: Sequence[str]) -> CandidateSeries:
    """Return these versions, in this order, as candidates."""
    name = canonicalize_name(package)
    return CandidateSeries(
        name,
        tuple(Candidate(version, version, (f"{name}=={version}", *pinned)) for version in versions),
        backwards=Version(versions[0]) > Version(versions[-1]),
    )


def _end(released: dict[Version, str], text: str) -> Version:
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

"""Which releases "0.28..0.32, 0.33.1" means."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from conformance.errors import ConformanceError

_EXAMPLE = "write releases and ranges of them: 0.28..0.30,0.32.0, or 0.28.. for all since"


def expand(text: str, releases: Iterable[str]) -> tuple[str, ...]:
    """The releases that are meant, in ascending order.

    A range holds both of its ends and, of an end with fewer parts than a release has, all that
    begins alike: 0.28..0.32 holds 0.32.1. Pre-releases are meant only when they are named.
    Raises ConformanceError for what is no version, was never released, or means nothing.
    """
    known: dict[Version, str] = {}
    for release in releases:
        try:
            known.setdefault(Version(Version(release).public), release)
        except InvalidVersion:  # of a time before versions were standardised
            continue
    chosen: set[Version] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        low, dots, high = part.partition("..")
        matching = _between(known, low, high) if dots else _release(known, part)
        if not matching:
            raise ConformanceError(f"there is no release in {part!r}", remedy=_near(known))
        chosen |= matching
    if not chosen:
        raise ConformanceError(f"{text!r} names no version", remedy=_EXAMPLE)
    return tuple(known[version] for version in sorted(chosen))


def _between(known: Iterable[Version], low: str, high: str) -> set[Version]:
    first = _version(low) if low.strip() else None
    last = _version(high) if high.strip() else None
    return {
        version
        for version in known
        if not version.is_prerelease
        and (first is None or version >= first)
        and (
            last is None or version <= last or version.release[: len(last.release)] == last.release
        )
    }


def _release(known: Iterable[Version], text: str) -> set[Version]:
    wanted = _version(text)
    return {version for version in known if version == wanted}


def _version(text: str) -> Version:
    try:
        return Version(text.strip())
    except InvalidVersion as error:
        raise ConformanceError(f"{text!r} is no version", remedy=_EXAMPLE) from error


def _near(known: Iterable[Version]) -> str:
    newest = sorted((version for version in known if not version.is_prerelease), reverse=True)[:5]
    return f"the newest releases: {', '.join(map(str, newest))}"

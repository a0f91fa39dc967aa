"""The combinations of versions of a sweep, and what became of the environment of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from conformance.environments import (
    Environment,
    Order,
    Spec,
    Untestable,
    measured,
    parse,
    place,
    short,
)
from conformance.errors import ConformanceError
from conformance.records import Backend, Column, record
from conformance.store import RunFolder
from conformance.store.files import read_record, write_record

FILE = "points.json"


@record()
class Point:
    """One combination of versions.

    `asked` maps a package to its version, `had` is everything that is installed, `moved` what
    is not as the lock file pins it besides. `untestable` says why there is no environment.
    `own_mib` is the disk space it takes, `mib` all that it shows: the rest are links.
    """

    name: str
    asked: Mapping[str, str]
    environment: str = ""
    had: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    untestable: str = ""
    seconds: float = 0.0
    reused: bool = False
    own_mib: float = 0.0
    mib: float = 0.0

    @property
    def spec(self) -> Spec:
        return spec_of(self.asked)


@record()
class Swept:
    """What was swept: the versions of each package in order, and every combination."""

    axes: Mapping[str, tuple[str, ...]]
    points: tuple[Point, ...]

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The environments that are built, where they are not there, when it goes on."""
        return tuple(dict.fromkeys(point.spec for point in self.points if not point.untestable))

    @property
    def requirements(self) -> tuple[str, ...]:
        """All that they would have installed, each once."""
        return tuple(dict.fromkeys(words for spec in self.specs for words in spec.requirements))


def spec_of(versions: Mapping[str, str]) -> Spec:
    return parse(" ".join(f"{name}=={version}" for name, version in versions.items()))


def combinations(axes: Mapping[str, Sequence[str]]) -> tuple[Mapping[str, str], ...]:
    """Every combination, the last package's versions changing fastest."""
    return tuple(
        dict(zip(axes, versions, strict=True)) for versions in itertools.product(*axes.values())
    )


def point(versions: Mapping[str, str], had: Environment | Untestable) -> Point:
    """One combination, once it is known what became of its environment."""
    name = short(spec_of(versions))
    if isinstance(had, Untestable):
        return Point(name, versions, untestable=str(had))
    size = measured(had)
    return Point(
        name,
        versions,
        had.id,
        had.versions,
        had.moved,
        seconds=had.seconds,
        reused=had.reused,
        own_mib=size.own_mib,
        mib=size.mib,
    )


def columns(
    backends: Sequence[Backend],
    points: Sequence[Point],
    had: Mapping[Spec, Environment | Untestable],
) -> tuple[Column, ...]:
    """Each backend in each environment: the backends first, then the versions."""
    return place(backends, [Order(point.name, (), point.spec) for point in points], had)


def mistake(swept: Swept) -> str:
    """Why these are not all combinations of some versions, each once; "" where they are."""
    if not swept.axes or not all(swept.axes.values()):
        return "it names no versions"
    number = math.prod(map(len, swept.axes.values()))
    asked = [dict(point.asked) for point in swept.points]
    if len(asked) != number or asked != list(combinations(swept.axes)):
        return "its points are not the combinations of its axes"
    if len({point.name for point in swept.points}) != len(swept.points):
        return "two of its points have one name"
    return ""


def write(run: RunFolder, swept: Swept) -> None:
    write_record(run.path / FILE, swept)


def read(run: RunFolder) -> Swept:
    """Raises ConformanceError when this run is no sweep."""
    swept = read_record(Swept, run.path / FILE, mistake=mistake)
    if swept is None:
        raise ConformanceError(
            f"run {run.id} is no sweep", path=run.path, remedy="start one: conformance sweep"
        )
    return swept

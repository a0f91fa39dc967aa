"""What a machine is told of a group, and what it says while it runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conformance.records import Job
from conformance.runner import Event, Limits


@dataclass(frozen=True)
class Expected:
    """What a machine must have to stand in for the one that the run was started on.

    `code` is the digest of this package, `versions` those of the harness's own interpreter.
    `arithmetic` are the variables by which numbers come out as they do.
    """

    code: str
    versions: Mapping[str, str]
    arithmetic: Mapping[str, str]


@dataclass(frozen=True)
class Errand:
    """One group. `python` is the interpreter of its workers, None for the machine's own, and
    `versions` what that must have. `device` is the kind of machine that it must run on, "" for any.
    """

    group: str
    job: Job
    python: Path | None
    preload: str
    env: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    expected: Expected
    limits: Limits
    load: float
    tries: int
    ours: bool
    device: str = ""


@dataclass(frozen=True)
class Begun:
    """A machine has taken the group on. `device` is the kind of machine that it is."""

    node: str
    machine: str
    device: str


@dataclass(frozen=True)
class Part:
    """A piece of a file of the group's folder. What `grows` is appended to; anything else is put in
    place when its `last` piece has come.
    """

    path: str
    offset: int
    data: bytes = field(repr=False)
    last: bool = True
    grows: bool = False


@dataclass(frozen=True)
class Ended:
    """The group has come to its end there; or the machine `cannot` run it, and why: not this one,
    or, as long as it is like that, none (`at_all`).
    """

    cannot: str = ""
    at_all: bool = False


@dataclass(frozen=True)
class Message:
    """`attempt` is another one each time that the group is begun: what comes late from a machine
    that counts as lost is known by it.
    """

    group: str
    attempt: str
    node: str
    says: Begun | Event | Part | Ended

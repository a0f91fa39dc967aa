"""The messages to a machine about a group, and the machine's messages while it runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conformance.runner.scheduling import Event, TimeLimits
from conformance.spec.records import Job


@dataclass(frozen=True)
class Expected:
    """What a machine must have to stand in for the driver's.

    `code` is the digest of this package, `versions` those of the harness's interpreter,
    `arithmetic` the environment variables that affect numerical results.
    """

    code: str
    versions: Mapping[str, str]
    arithmetic: Mapping[str, str]


@dataclass(frozen=True)
class RemoteJob:
    """One remote job. `python` is its workers' interpreter, None for the machine's own, with the
    required `versions`. `device` is the required kind of machine, "" for any.
    """

    group: str
    job: Job
    python: Path | None
    preload: str
    env: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    expected: Expected
    limits: TimeLimits
    load: float
    tries: int
    ours: bool
    device: str = ""


@dataclass(frozen=True)
class Begun:
    """A machine has started the group. `device` is its kind of machine."""

    node: str
    machine: str
    device: str


@dataclass(frozen=True)
class FilePiece:
    """A piece of a file in the group's folder. If it `grows`, it is appended; other files are put
    in place when their `last` piece has arrived.
    """

    path: str
    offset: int
    data: bytes = field(repr=False)
    last: bool = True
    grows: bool = False


@dataclass(frozen=True)
class Ended:
    """The group has ended there; or the machine `cannot` run it, for this reason. With `at_all`, it
    can run no group in its current state.
    """

    cannot: str = ""
    at_all: bool = False


@dataclass(frozen=True)
class Message:
    """A message to the driver. `attempt` differs each time the group is started, so late messages
    from a lost machine are recognised.
    """

    group: str
    attempt: str
    node: str
    says: Begun | Event | FilePiece | Ended

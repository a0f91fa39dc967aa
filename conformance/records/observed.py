"""What a worker says: how a cell ended, and what its engine really was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from conformance.records.base import Id, record
from conformance.records.matrix import Precision


class Status(StrEnum):
    """How the gathering of one cell ended. Not a judgement."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"
    UNTESTABLE = "untestable"
    STRUCTURE = "structure"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    MISSING = "missing"


class Owner(StrEnum):
    """Whose code a frame of a traceback is in."""

    SCENARIO = "scenario"
    HARNESS = "harness"
    SELFTEST = "self-test"
    PIPELINE = "pipeline"
    NNSIGHT = "nnsight"
    ENGINE = "engine"


@record()
class Frame:
    """A call in a traceback: whose, in which file (from its package on) and line."""

    owner: Owner
    file: str
    line: int


@record()
class Outcome:
    """How one cell ended, written by the worker last, or by the runner in its place.

    `harness` marks an error that is ours: it is never scored as the product's. `outside` marks
    an end that somebody else brought about, a kill for want of memory for one: it says nothing
    about the cell, which a resumed run tries again. `frames` are the calls of the traceback in
    `detail` whose owner the worker knows, the innermost last. `hooks` are the steps of the engine
    in which a block was under way and the layers' hooks fired; 0 where none was, or nobody counts
    them. `left` names what the cell's block has changed for good. `opened`
    are the files that the scenario opened or imported, with the digests of what they held
    (`conformance.store.opened`).
    """

    status: Status
    seconds: float = 0.0
    reason: str = ""
    detail: str = ""
    harness: bool = False
    prompt_ids: tuple[tuple[int, ...], ...] = ()
    outside: bool = False
    frames: tuple[Frame, ...] = ()
    hooks: int = 0
    left: tuple[str, ...] = ()
    opened: Mapping[str, str] = field(default_factory=dict)


@record()
class Group:
    """What one worker said about itself: what it loaded and what it really was.

    `machine` is where it ran, where that was one of several; `lost` are those that were lost, or
    could not, before it. `config` is the model's, of the reference's worker alone: text by key.
    """

    model: Id
    backend: Id
    precision: Precision = Precision.BF16
    status: Status = Status.OK
    reason: str = ""
    layout: str = ""
    layout_tried: Mapping[str, float] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    load_seconds: float = 0.0
    seconds: float = 0.0
    peak_mib: float = 0.0
    log_tail: str = ""
    starts: int = 1
    reused: bool = False
    machine: str = ""
    lost: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def bitwise(self) -> bool:
        """Does what it is asked again come out the same to the last bit: on a CPU, and where a
        trace of the probe prompt, run twice when it started, did.
        """
        return self.identity.get("device") == "cpu" or self.identity.get("repeats") is True

    @property
    def bitwise_beside(self) -> bool:
        """Does a request have the bits beside others that it has alone: where prompts of several
        lengths, traced alone and together when it started, had the same ones.
        """
        return self.bitwise and self.identity.get("kept_beside") is True

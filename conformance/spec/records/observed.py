"""Output of a worker: how a cell ended, and what its engine was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from conformance.spec.records.base import Id, record
from conformance.spec.records.matrix import Precision


class Status(StrEnum):
    """How the run of one cell ended; not a verdict."""

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
    """A call in a traceback: whose code, the file (from its package on) and line."""

    owner: Owner
    file: str
    line: int


@record()
class Outcome:
    """How one cell ended, written last by the worker, or by the runner in its place.

    `harness` marks an error of the harness, never scored as the product's. `outside` marks an end
    with an external cause, such as the OOM killer: it says nothing about the cell, and a resumed
    run tries it again. `frames` are the calls in `detail`'s traceback with a known owner, innermost
    last. `hooks` counts the engine steps during a block in which the layers' hooks fired; 0 if
    there were none, or they were not counted. `left` names what the cell's block changed
    permanently. `opened` are the files that the scenario opened or imported, with digests
    (`conformance.runner.store.keys`).
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
    """One worker's report on itself: what it loaded and what it was.

    `machine` is where it ran, if there were several; `lost` are machines that failed before.
    `config` is the model's, from the reference's worker only: text by key.
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
        """Return whether it is bitwise reproducible: on a CPU, or if two probe traces agreed."""
        return self.identity.get("device") == "cpu" or self.identity.get("repeats") is True

    @property
    def bitwise_beside(self) -> bool:
        """Return whether a request has the same bits in a batch as alone.

        Tested at its start with prompts of several lengths, traced alone and together.
        """
        return self.bitwise and self.identity.get("kept_beside") is True

    @property
    def batch_invariant(self) -> bool:
        """Return whether the engine promises the same bits in every batch, of mixtures too."""
        return self.bitwise and self.identity.get("batch_invariant") is True

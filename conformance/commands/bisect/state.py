"""A bisect's folder: the request, and every trial of a candidate, saved as it is made.

reports/bisect-<time>-<random>/state.json     rewritten after every trial, by rename
reports/bisect-<time>-<random>/cells.json     the cells and all that a run of them needs
reports/bisect-<time>-<random>/runs/<run>/    one run for each trial
reports/bisect-<time>-<random>/{report.json,report.md,index.html}
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from conformance.commands.bisect import candidates
from conformance.commands.bisect.candidates import Candidate
from conformance.commands.bisect.halving import CONFIRM, USUAL, Class, SignaturePart
from conformance.commands.bisect.signature import Signatures
from conformance.errors import ConformanceError
from conformance.runner.processes import lock
from conformance.runner.store import create_run
from conformance.runner.store.files import read_record, write_record
from conformance.spec.records import record
from conformance.spec.records.base import Count, Id

PREFIX = "bisect-"
STATE = "state.json"
#: A search has two ends, and lock files come in pairs.
_ENDS = 2


@record()
class BisectionRequest:
    """What the user requested. `subject` is what moves: a package, or "lock".

    `with_cells` are the options that select the cells, for the command that reproduces.
    `backwards`: the good end is the newer one. `allow_moves`: also try candidates whose environment
    changes another package that the columns run on.
    """

    subject: str
    good: str
    bad: str
    command: str
    with_cells: str = ""
    by: tuple[SignaturePart, ...] = USUAL
    neither: Class = Class.BAD
    confirm: Count = CONFIRM
    started: str = ""
    backwards: bool = False
    allow_moves: bool = False


@record()
class CandidateTrial:
    """One trial of a candidate: its signatures, or why it is untestable.

    `environment` is the id of its environment, `built` whether it was built for this trial, `run`
    the folder below `runs/`. `harness` marks an error of this project.
    """

    candidate: str
    signatures: Signatures = ()
    untestable: str = ""
    harness: bool = False
    environment: Id | Literal[""] = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    built: bool = False
    build_seconds: float = 0.0
    seconds: float = 0.0
    run: Id | Literal[""] = ""

    @property
    def words(self) -> str:
        """What was seen, or why nothing was."""
        return self.untestable or "; ".join(dict.fromkeys(map(str, self.signatures)))


@record()
class BisectionState:
    """The state of a bisect. `locks` holds both lock files if the search is between lock files."""

    asked: BisectionRequest
    candidates: tuple[Candidate, ...]
    attempts: tuple[CandidateTrial, ...] = ()
    locks: tuple[Mapping[str, str], ...] = ()

    def of(self, key: str) -> tuple[CandidateTrial, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.candidate == key)

    def tested(self, key: str) -> CandidateTrial | None:
        """Return the first attempt that has signatures."""
        return next((attempt for attempt in self.of(key) if attempt.signatures), None)

    def with_attempt(self, attempt: CandidateTrial) -> BisectionState:
        return replace(self, attempts=(*self.attempts, attempt))


def mistake(state: BisectionState) -> str:
    """Return why this state cannot be searched, or ""."""
    keys = [candidate.key for candidate in state.candidates]
    if len(keys) < _ENDS or len(set(keys)) < len(keys):
        return "its candidates are not two ends and what lies between them"
    if len(state.locks) not in (0, _ENDS):
        return "there are two lock files or none"
    if state.locks and len(candidates.changes(*state.locks)) + 1 != len(keys):
        return "its candidates are not the changes between its lock files"
    cells = {tuple(one.cell for one in each.signatures) for each in state.attempts}
    if len(cells - {()}) > 1:
        return "its trials are not all of the same cells"
    return ""


class BisectFolder:
    """The folder that stores one bisect."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    def read(self) -> BisectionState:
        """Read the state. Raises ConformanceError if this is not the folder of a bisect."""
        state = read_record(BisectionState, self.path / STATE, mistake=mistake)
        if state is None:
            words = f"is not the folder of a bisect: it has no {STATE}"
            raise ConformanceError(words, path=self.path)
        return state

    def write(self, state: BisectionState) -> None:
        write_record(self.path / STATE, state)

    def change(self, *, allow_moves: bool = False, retry: bool = False) -> None:
        """Also try candidates that change other packages, or try again what was untestable."""
        with self.alone():
            state = self.read()
            if allow_moves:
                state = replace(state, asked=replace(state.asked, allow_moves=True))
            if retry:  # the network may have been down
                tested = tuple(attempt for attempt in state.attempts if attempt.signatures)
                state = replace(state, attempts=tested)
            self.write(state)

    def alone(self) -> AbstractContextManager[None]:
        """Lock the folder: two processes would overwrite each other's trials."""
        return lock.hold_lock(self.path / "lock", self.path, "bisect")


def create(reports: Path, state: BisectionState, now: datetime) -> BisectFolder:
    """Create a folder with a unique name that sorts by time."""
    folder = BisectFolder(create_run(reports, now, PREFIX).path)
    folder.write(state)
    return folder


def find(reports: Path, name: str) -> BisectFolder:
    """Find a bisect by its name, or `latest`. Raises ConformanceError if there is none."""
    if name == "latest":
        names = sorted(path.parent.name for path in reports.glob(f"{PREFIX}*/{STATE}"))
        name = names[-1] if names else name
    path = reports / name
    if not (path / STATE).is_file():
        raise ConformanceError(
            f"there is no bisect {name!r}",
            path=reports,
            remedy="start one: conformance bisect vllm --good VERSION --bad VERSION",
        )
    return BisectFolder(path)

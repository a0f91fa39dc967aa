"""What was judged: verdicts, the evidence for them, and `results.json` as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from conformance.records.asked import Column
from conformance.records.base import record
from conformance.records.observed import Group

SCHEMA = "conformance-results/3"


class Verdict(StrEnum):
    """The judgement on one cell. Only `exact` and `match` pass."""

    EXACT = "exact"
    MATCH = "match"
    DRIFT = "drift"
    WRONG = "wrong"
    DROPPED = "dropped"
    PARTIAL = "partial"
    MISSCALED = "misscaled"
    CONTAMINATED = "contaminated"
    ALIASED = "aliased"
    STRUCTURE = "structure"
    DTYPE = "dtype"
    NONFINITE = "nonfinite"
    MISSING = "missing"
    VACUOUS = "vacuous"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"
    UNTESTABLE = "untestable"
    UNKNOWN = "unknown"

    @property
    def passes(self) -> bool:
        return self in PASSING

    @property
    def neutral(self) -> bool:
        """Neither a pass nor a failure; always carries a reason."""
        return self in NEUTRAL

    @property
    def fails(self) -> bool:
        return not (self.passes or self.neutral)


PASSING = frozenset({Verdict.EXACT, Verdict.MATCH})
NEUTRAL = frozenset({Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNTESTABLE})


@record()
class Thresholds:
    """What the judge gates on. Units: multiples of the bf16 noise floor, except as said."""

    k_med: float = 1.25
    k_max: float = 2.0
    drift_max: float = 10.0
    drift_spread: float = 0.5
    gain_tolerance: float = 0.1
    gain_sigmas: float = 4.0
    off_axis: float = 0.5
    power: float = 0.1
    margin: float = 4.0
    source: str = "docs/numerics.md"


@record()
class ModelScores:
    """What honest runs held out of the ensemble reached on one model's clean cases.

    `med` and `max` are what the model needs (split-conformal quantiles of Q_med and Q_max),
    `largest_med` and `largest_max` the most that was seen, at `worst`. `alarms` of the
    `held_out` runs are beyond the thresholds.
    """

    model: str
    cases: int
    held_out: int
    med: float
    max: float
    largest_med: float
    largest_max: float
    worst: str
    alarms: int


@record()
class Calibration:
    """`calibration.json`: the thresholds and where they come from.

    One alarm in `cases_per_alarm` clean cases is accepted. `models` need what they need;
    those in `beyond` need more than the caps. `scores` names the scores that all of this
    was computed from, `digest` everything else in the file.
    """

    k_med: float
    k_max: float
    cap_med: float
    cap_max: float
    cases_per_alarm: int
    cases: int
    held_out: int
    alarms: int
    date: str
    device: str
    versions: Mapping[str, str]
    models: tuple[ModelScores, ...]
    beyond: tuple[str, ...]
    scores: str
    digest: str = ""


@record()
class Gain:
    """Did the write land: Δcandidate = g·Δtruth + rest (docs/numerics.md#the-gain)."""

    g: float
    h: float
    sigma: float
    tokens: tuple[float, ...] = ()


@record()
class Judged:
    """One observation's judgement. Ratios are multiples of the noise floor.

    `ratios` is ρ per token (rows of the tensor), `smallest` the smallest relative
    error that would have been found, None where it means nothing.
    """

    site: str
    verdict: Verdict
    message: str = ""
    q_med: float | None = None
    q_max: float | None = None
    spread: float | None = None
    ratios: tuple[float, ...] = ()
    error: float | None = None
    floor: float | None = None
    smallest: float | None = None
    gain: Gain | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@record()
class Relation:
    """A rule that needs no tolerance, and whether it held."""

    name: str
    holds: bool
    detail: str = ""


class Side(StrEnum):
    """Who has to mend a failed cell."""

    ENGINE = "engine"
    NNSIGHT = "nnsight"
    PIPELINE = "pipeline"
    HARNESS = "harness"
    UNDECIDED = "undecided"


@record()
class Attribution:
    """The side, and in words the facts that decided."""

    side: Side
    evidence: str

    def __str__(self) -> str:
        return f"{self.side}: {self.evidence}"


@record()
class CellResult:
    """A cell with its verdict and the evidence for it: one entry of `cells`."""

    id: str
    model: str
    architecture: str
    backend: str
    scenario: str
    case: str
    verdict: Verdict
    reason: str
    seconds: float
    command: str
    observations: tuple[Judged, ...] = ()
    relations: tuple[Relation, ...] = ()
    worst_site: str = ""
    worst_ratio: float | None = None
    detail: str = ""
    harness: bool = False
    diagnosis: str = ""
    attribution: Attribution | None = None
    expected: str = ""
    layers: Mapping[str, int] = field(default_factory=dict)
    prompt_ids: tuple[tuple[int, ...], ...] = ()


@record()
class ModelInfo:
    id: str
    architecture: str
    source: str
    digest: str
    layers: int = 0
    width: int = 0


@record()
class ScenarioInfo:
    """What the report tells about a scenario: meaning (docstring) and both sources."""

    id: str
    meaning: str
    cases: tuple[str, ...]
    path: str
    trace_source: str = ""
    reference_source: str = ""


@record()
class RunInfo:
    id: str
    started: str
    finished: str
    seconds: float
    command: str
    jobs: int = 1
    peak_mib: float = 0.0
    resumed: int = 0


@record()
class Environment:
    """The parent's machine and versions, the thresholds the judge used and, where they were
    calibrated, how.
    """

    python: str
    platform: str
    device: str
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    thresholds: Thresholds
    calibration: Calibration | None = None


@record()
class Footer:
    """Written last: a results.json without it is incomplete and is refused."""

    planned: int
    judged: int
    verdicts: Mapping[str, int]
    exit_code: int


@record()
class Results:
    """`results.json`, whole."""

    schema: str
    run: RunInfo
    environment: Environment
    models: tuple[ModelInfo, ...]
    columns: tuple[Column, ...]
    scenarios: tuple[ScenarioInfo, ...]
    groups: tuple[Group, ...]
    cells: tuple[CellResult, ...]
    footer: Footer

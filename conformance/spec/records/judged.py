"""Results: verdicts, the evidence for them, and `results.json` as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields
from enum import StrEnum
from typing import Any

from conformance.spec.records.base import CellId, Id, record
from conformance.spec.records.matrix import Column, Precision, Selection, Site
from conformance.spec.records.observed import Frame, Group
from conformance.spec.records.verdict import Finding, Verdict

SCHEMA = "conformance-results/3"
#: Key in an observation's `extra`, if it is off by a size: the relative error of its worst row,
#: massive dimension or common shift (docs/known.md).
LARGEST = "largest_error"


@record()
class Limits:
    """The judge's limits in one precision. Units: multiples of that precision's noise floor, unless
    stated otherwise; the reasons are in docs/numerics.md.

    Up to `k_med` (the median over tokens) and `k_max` (any one token) a value matches, up to
    `far_med` and `far_max` it drifts, beyond them it is wrong. A gain is 1 within `gain_tolerance`
    (of the effect) or `gain_sigmas` of its own noise; if that exceeds `gain_room`, it proves
    nothing. `off_axis` limits the part in other directions. `single` limits a row's common shift: a
    few baseline runs show the error of one number less reliably than that of a row. `massive`
    limits a row's massive activations together for a match; up to `far_max` they, or one of them,
    drift. `leak` limits the change of a row that is not written to (one engine, so a rounding or
    two), `margin` how far below the best a chosen token's logit may be.
    """

    k_med: float
    k_max: float
    far_med: float
    far_max: float
    gain_tolerance: float
    gain_sigmas: float
    gain_room: float
    off_axis: float
    single: float
    leak: float
    margin: float
    massive: float = 5.0  # runs judged before this limit existed lack it


#: A hundred times the float32 noise of a value, and six hundred times below the bf16 noise.
FLOAT32_LIMITS = Limits(
    k_med=100.0,
    k_max=100.0,
    far_med=100.0,
    far_max=100.0,
    gain_tolerance=2.0**-12,
    gain_sigmas=100.0,
    gain_room=0.5,
    off_axis=2.0**-12,
    single=1000.0,
    leak=10.0,
    margin=100.0,
    massive=100.0,
)
#: Drift from 1.5 and 3 times the noise floor, wrong where half of bf16's eight bits are lost.
BF16_LIMITS = Limits(
    k_med=1.5,
    k_max=3.0,
    far_med=16.0,
    far_max=16.0,
    gain_tolerance=0.25,
    gain_sigmas=8.0,
    gain_room=0.5,
    off_axis=0.5,
    single=16.0,
    leak=16.0,
    margin=8.0,
    massive=5.0,
)


@record()
class Thresholds:
    """The limits of both precisions, and their source."""

    float32: Limits = FLOAT32_LIMITS
    bf16: Limits = BF16_LIMITS
    source: str = "docs/numerics.md"

    def of(self, precision: Precision) -> Limits:
        return self.float32 if precision is Precision.FLOAT32 else self.bf16


def widened(thresholds: Thresholds, factor: float) -> Thresholds:
    """Multiply every limit of both precisions by `factor`."""

    def wider(limits: Limits) -> Limits:
        return Limits(*(factor * getattr(limits, limit.name) for limit in fields(Limits)))

    source = thresholds.source if factor == 1 else f"{thresholds.source}, {factor:g} times as wide"
    return Thresholds(wider(thresholds.float32), wider(thresholds.bf16), source)


@record()
class Gain:
    """The effect of a write: Δcandidate = g·Δreference + rest (docs/numerics.md#the-gain)."""

    g: float
    h: float
    sigma: float
    tokens: tuple[float, ...] = ()

    @property
    def off(self) -> float:
        """Return how far it is from 1; infinite for nan."""
        return math.inf if math.isnan(self.g) else abs(self.g - 1)


@record()
class Judged:
    """One observation's judgement. Ratios are multiples of the noise floor.

    `ratios` is ρ per token (rows of the tensor), `smallest` the smallest relative error that would
    have been found, None if not applicable.
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

    @property
    def place(self) -> Site | None:
        """Return where it was made, None if the name is not a site."""
        try:
            return Site.parse(self.site)
        except ValueError:
            return None


@record()
class Relation:
    """A rule without tolerance, and whether it held. One that does not gate is only shown."""

    name: str
    holds: bool
    detail: str = ""
    gates: bool = True


class Side(StrEnum):
    """Who has to fix a failed cell."""

    ENGINE = "engine"
    NNSIGHT = "nnsight"
    PIPELINE = "pipeline"
    HARNESS = "harness"
    UNDECIDED = "undecided"


@record()
class Attribution:
    """The side, and a description of the facts that decided."""

    side: Side
    evidence: str

    def __str__(self) -> str:
        return f"{self.side}: {self.evidence}"


@record()
class Answer:
    """One precision's verdict on a cell, and the evidence for it.

    `predicted` are the definitions of the model (`PREDICTIONS`) with which it would pass.
    """

    precision: Precision
    verdict: Verdict
    reason: str
    seconds: float = 0.0
    observations: tuple[Judged, ...] = ()
    relations: tuple[Relation, ...] = ()
    worst_site: str = ""
    worst_ratio: float | None = None
    detail: str = ""
    harness: bool = False
    diagnosis: str = ""
    frames: tuple[Frame, ...] = ()
    predicted: tuple[str, ...] = ()


@record()
class CellResult:
    """A cell with its verdict and the evidence for it: one entry of `cells`.

    The verdict is decided by correctness (in float32) and numerics (in bf16). The evidence is that
    of `precision`; `decided` is that precision's verdict if it differs from the cell's, and
    `beside` the other precision's answer. `finding` is the comparison with known.yaml (None: not
    compared), `gap` the index in `gaps` of the explanation. `left` names what the block changed
    permanently. `predicted` are the definitions of the model with which it would pass in
    `precision`.
    """

    id: CellId
    model: Id
    architecture: str
    backend: Id
    scenario: Id
    case: Id
    verdict: Verdict
    reason: str
    seconds: float
    command: str
    finding: Finding | None = None
    gap: int | None = None
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
    precision: Precision = Precision.BF16
    decided: Verdict | None = None
    beside: Answer | None = None
    frames: tuple[Frame, ...] = ()
    left: tuple[str, ...] = ()
    predicted: tuple[str, ...] = ()

    @property
    def meaning(self) -> Verdict | None:
        """Return the verdict in float32; None if it did not run."""
        return self._verdict_in(Precision.FLOAT32)

    @property
    def numerics(self) -> Verdict | None:
        """Return the verdict in bf16; None if it did not run."""
        return self._verdict_in(Precision.BF16)

    def _verdict_in(self, precision: Precision) -> Verdict | None:
        if precision is self.precision:
            return self.decided or self.verdict
        return self.beside.verdict if self.beside else None


class Witness(StrEnum):
    """Whether a second implementation confirms a model's float32 reference."""

    CONFIRMED = "confirmed"
    SHARED = "shared"
    DISAGREES = "disagrees"
    UNKNOWN = "unknown"


@record()
class Confirmation:
    """Who confirms a model's reference, in words.

    `distance` of the other implementation's log-probabilities and `floor` of transformers' baseline
    runs are relative, over `prompts` prompts.
    """

    witness: Witness
    words: str
    distance: float | None = None
    floor: float | None = None
    prompts: int = 0


@record()
class Gap:
    """A cause that known.yaml gives for cells that do not pass: its entries with one reason.

    `standing` is the state of the entries after the run, `whose` who has to fix it, `date` when it
    was entered; `versions` and `device` say where it applies, `lines` where it is in the file.
    `prediction` names the definition its cells must follow; "" if words or a size identify them.
    """

    reason: str
    standing: str
    date: str
    link: str = ""
    reproduce: str = ""
    whose: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = "*"
    lines: tuple[int, ...] = ()
    prediction: str = ""


@record()
class ModelInfo:
    id: Id
    architecture: str
    source: str
    digest: str
    layers: int = 0
    width: int = 0
    truth: Confirmation | None = None
    harder_than: str = ""
    config: Mapping[str, str] = field(default_factory=dict)


@record()
class ScenarioInfo:
    """A scenario in the report: its meaning (docstring) and both sources."""

    id: Id
    meaning: str
    cases: tuple[str, ...]
    path: str
    trace_source: str = ""
    reference_source: str = ""


@record()
class RunInfo:
    id: Id
    started: str
    finished: str
    seconds: float
    command: str
    jobs: int = 1
    peak_mib: float = 0.0
    resumed: int = 0


@record()
class Environment:
    """The parent's machine and versions, and the judge's thresholds.

    `settings` are environment variables that select threads or kernels: `OMP_NUM_THREADS=4`.
    """

    python: str
    platform: str
    device: str
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    thresholds: Thresholds
    settings: tuple[str, ...] = ()


@record()
class Footer:
    """Written last: a results.json without it is incomplete and is refused."""

    planned: int
    judged: int
    verdicts: Mapping[str, int]
    exit_code: int
    strict_numerics: bool = False


@record()
class Results:
    """`results.json`. `details` is the digest of the Parquet file with the judgements of passing
    observations, "" if they are in `cells`.
    """

    schema: str
    run: RunInfo
    environment: Environment
    models: tuple[ModelInfo, ...]
    columns: tuple[Column, ...]
    scenarios: tuple[ScenarioInfo, ...]
    groups: tuple[Group, ...]
    cells: tuple[CellResult, ...]
    gaps: tuple[Gap, ...] = field(default=(), kw_only=True)
    selection: Selection = field(default=Selection(), kw_only=True)
    details: str = field(default="", kw_only=True)
    footer: Footer

"""What was judged: verdicts, the evidence for them, and `results.json` as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields
from enum import StrEnum
from typing import Any

from conformance.records.base import CellId, Id, record
from conformance.records.matrix import Column, Precision, Selection, Site
from conformance.records.observed import Frame, Group
from conformance.records.verdict import Finding, Verdict

SCHEMA = "conformance-results/3"
#: In an observation's `extra`, where it is off by a size: the relative error of its worst row,
#: massive dimension or common shift (docs/known.md).
LARGEST = "largest_error"


@record()
class Limits:
    """What the judge gates on in one precision. Units: multiples of that precision's noise
    floor, except as said; the reasons are in docs/numerics.md.

    Up to `k_med` (the median over tokens) and `k_max` (any one token) a value is a match, up to
    `far_med` and `far_max` it drifts, beyond them it is wrong. A gain is 1 within
    `gain_tolerance` (of the effect) or `gain_sigmas` of its own noise, and says nothing where
    that is more than `gain_room`; off-axis likewise within `off_axis`. `single` is what a row's
    common shift may be off by: a few honest runs show the error of one number less surely than
    that of a row. `massive` is what a row's massive activations together may be off by to be a
    match; up to `far_max` they drift, and so may one of them. `leak` is what a row
    that nothing is written to may change by (one engine, so a rounding or two), `margin` how
    far below the best a chosen token's logit may lie.
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
    massive: float = 5.0  # a run that was judged before there was this limit has none


#: A hundred times above what float32 does to a value, and six hundred below what bf16 does.
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
#: Shown from 1.5 and 3 times the floor on, wrong where half of bf16's eight bits are gone.
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
    """The limits of both precisions, and who set them."""

    float32: Limits = FLOAT32_LIMITS
    bf16: Limits = BF16_LIMITS
    source: str = "docs/numerics.md"

    def of(self, precision: Precision) -> Limits:
        return self.float32 if precision is Precision.FLOAT32 else self.bf16


def widened(thresholds: Thresholds, factor: float) -> Thresholds:
    """Every limit of both precisions so many times as wide."""

    def wider(limits: Limits) -> Limits:
        return Limits(*(factor * getattr(limits, limit.name) for limit in fields(Limits)))

    source = thresholds.source if factor == 1 else f"{thresholds.source}, {factor:g} times as wide"
    return Thresholds(wider(thresholds.float32), wider(thresholds.bf16), source)


@record()
class Gain:
    """Did the write land: Δcandidate = g·Δtruth + rest (docs/numerics.md#the-gain)."""

    g: float
    h: float
    sigma: float
    tokens: tuple[float, ...] = ()

    @property
    def off(self) -> float:
        """How far it is from 1; NaN is further than anything."""
        return math.inf if math.isnan(self.g) else abs(self.g - 1)


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

    @property
    def place(self) -> Site | None:
        """Where it was made, None where its name is none of ours."""
        try:
            return Site.parse(self.site)
        except ValueError:
            return None


@record()
class Relation:
    """A rule that needs no tolerance, and whether it held. One that does not gate is shown."""

    name: str
    holds: bool
    detail: str = ""
    gates: bool = True


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
class Answer:
    """What one precision says of a cell: its verdict, and the evidence for it. `predicted` are the
    definitions of the model (`PREDICTIONS`) by which it would pass.
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

    The verdict is decided by what the cell means (in float32) and by its numerics (in bf16);
    the evidence is that of `precision`, whose own verdict is `decided` (where it is another than
    the cell's), and `beside` is the other precision's answer.

    `finding` is what known.yaml makes of it (None: it was not asked), `gap` the index in `gaps`
    of what explains it. `left` names what its block has changed for good.
    `predicted` are the definitions of the model by which it would pass in `precision`.
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
        """The verdict in float32; None where nothing was gathered in it."""
        return self._verdict_in(Precision.FLOAT32)

    @property
    def numerics(self) -> Verdict | None:
        """The verdict in bf16; None where nothing was gathered in it."""
        return self._verdict_in(Precision.BF16)

    def _verdict_in(self, precision: Precision) -> Verdict | None:
        if precision is self.precision:
            return self.decided or self.verdict
        return self.beside.verdict if self.beside else None


class Witness(StrEnum):
    """Whether a second implementation confirms a model's float32 truth."""

    CONFIRMED = "confirmed"
    SHARED = "shared"
    DISAGREES = "disagrees"
    UNKNOWN = "unknown"


@record()
class Confirmation:
    """Who stands behind a model's truth, in words; `distance` of the other implementation's
    log-probabilities from it and the `floor` of transformers' own ways are relative, over so
    many `prompts`.
    """

    witness: Witness
    words: str
    distance: float | None = None
    floor: float | None = None
    prompts: int = 0


@record()
class Gap:
    """A cause that known.yaml names for cells that do not pass: its entries with one reason.

    `standing` is what the run made of them, `whose` who has to mend it, `date` when it was
    entered; `versions` and `device` say where it applies, `lines` where it stands in the file.
    `prediction` names what its cells are held to; "" for one that rests on words or a size.
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
    """What the report tells about a scenario: meaning (docstring) and both sources."""

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
    """The parent's machine and versions, and the thresholds the judge used.

    `settings` are environment variables that chose threads or kernels: `OMP_NUM_THREADS=4`.
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
    """`results.json`, whole. `details` is the digest of the Parquet file beside it which holds the
    judgements of the observations that pass, "" where they stand in `cells`.
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

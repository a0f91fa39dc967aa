"""Select few cells of the product that together exercise every choice (pure).

The product of all models, backends and cases is the full tier. Of each scenario, a covering tier
keeps the cells that satisfy these rules:

- A model that represents a kind of layer runs every case on every backend.
- Another model of the same architecture runs the scenario's last case, on every backend.
- Every other model runs every value of every option of the scenario, and every backend.
- All other models together run every pair of values of two options; the backend is an option.
- Cases that depend only on the engine run only on the models that represent a kind of layer.
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

from conformance.spec.records import Cell, Column, Model
from conformance.spec.scenario import ENGINE, Scenario

#: A model, a case and a backend; the backend's environments count as one.
_Row = tuple[str, str, str]

#: An option's name and value, or two of them.
_Covered = frozenset[tuple[str, object]]

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
    rows: dict[str, dict[_Row, list[Cell]]] = {}
    for cell in product:
        row = cell.model, cell.case, backends[cell.backend]
        rows.setdefault(cell.scenario, {}).setdefault(row, []).append(cell)
    chosen = {
        cell
        for name, own in rows.items()
        for row in _Dealer(scenarios[name], own).choose(models, kinds)
        for cell in own[row]
    }
    cells = tuple(cell for cell in product if cell in chosen)
    own = {column.backend.id for column in columns if column.backend.engine == _TRANSFORMERS}
    in_turn = [name for name in dict.fromkeys(backends.values()) if name not in own]
    both = _in_bf16(cells, models, backends, scenarios, kinds, in_turn or sorted(own))
    return Covering(cells, frozenset(cells) - both)


class _Dealer:
    """Selects the rows of one scenario, going through the models in order."""

    def __init__(self, scenario: Scenario, rows: Iterable[_Row]) -> None:
        cases = {case.name: case for case in scenario.expand(1)}
        self._of_engine = {
            name for name, case in cases.items() if scenario.depends_on(case) == ENGINE
        }
        self._used: Counter[tuple[str, str]] = Counter()
        self._together: set[_Covered] = set()
        #: What each row covers: the values of its options, and every pair of them.
        self._covers: dict[_Row, set[_Covered]] = {}
        for row in rows:
            choice = scenario.cases[row[1]]
            named = [(_BACKEND, row[2]), *choice["layers"].items(), *choice["options"].items()]
            both = [*combinations(named, 1), *combinations(named, 2)]
            self._covers[row] = set(map(frozenset, both))

    def choose(self, models: Sequence[Model], kinds: Collection[str]) -> set[_Row]:
        there = {row[0] for row in self._covers}
        own = [model for model in models if model.id in there]
        whole = [model for model in own if model.id in kinds] or own[:1]
        represented = {model.architecture for model in whole}
        taken: set[_Row] = set()
        dealt: list[_Row] = []
        for model in own:
            rows = [row for row in self._covers if row[0] == model.id]
            if model in whole:
                taken.update(rows)
                continue
            rows = [row for row in rows if row[1] not in self._of_engine]
            if model.architecture in represented:
                taken.update(row for row in rows if row[1] == rows[-1][1])
                continue
            dealt += rows
            every = {one for row in rows for one in self._covers[row]}
            taken |= self._take(rows, {value for value in every if len(value) == 1})
        left = {one for row in dealt for one in self._covers[row]} - self._together
        return taken | self._take([row for row in dealt if row not in taken], left)

    def _take(self, rows: Sequence[_Row], wanted: set[_Covered]) -> set[_Row]:
        """Take rows until everything wanted is covered."""
        left = list(rows)
        taken: set[_Row] = set()
        while wanted:
            scores = {row: self._score(row, wanted) for row in left}
            best = max(left, key=scores.__getitem__)  # the first of equals
            wanted = wanted - self._covers[best]
            self._together |= self._covers[best]
            self._used[best[1:]] += 1
            left.remove(best)
            taken.add(best)
        return taken

    def _score(self, row: _Row, wanted: set[_Covered]) -> tuple[int, int, int]:
        """Return how much a row covers: wanted items, new items, and how rarely it was used."""
        covered = self._covers[row]
        return len(covered & wanted), len(covered - self._together), -self._used[row[1:]]


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
    about = {
        (scenario.name, case.name): (scenario, case)
        for scenario in scenarios.values()
        for case in scenario.expand(1)
    }
    telling = {key for key, (scenario, case) in about.items() if scenario.numerics(case)}
    writing = {
        key
        for key, (scenario, case) in about.items()
        if scenario.twin(case) and not case.settings and scenario.depends_on(case) != ENGINE
    }
    writes: Counter[tuple[str, str]] = Counter()
    both: set[Cell] = set()
    for turn, model in enumerate(models):
        every = set(backends.values())
        used = every if model.id in kinds else {in_turn[turn % len(in_turn)]}
        own = [cell for cell in cells if cell.model == model.id and backends[cell.backend] in used]
        cases = [(cell.scenario, cell.case) for cell in own]
        more = [case for case in cases if case in writing - telling]
        taken = telling & set(cases)
        if more and (model.id in kinds or taken.isdisjoint(writing)):
            one = min(more, key=writes.__getitem__)
            writes[one] += 1
            taken.add(one)
        both |= {cell for cell, case in zip(own, cases, strict=True) if case in taken}
    return both

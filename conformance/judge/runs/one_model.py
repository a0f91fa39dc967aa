"""Judge one model's cells of a stored run, and attribute the failures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from conformance.judge.runs.attributing import attribute_failures
from conformance.judge.runs.one_case import Columns
from conformance.judge.runs.witness import explain_trust
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.builtin.engine_alone import WITHOUT_NNSIGHT, alone
from conformance.spec.records import (
    Case,
    Cell,
    CellResult,
    Column,
    Model,
    ModelInfo,
    Precision,
    Thresholds,
)
from conformance.spec.scenario import Scenario


def judge_model(
    run: RunFolder,
    model: Model,
    columns: Sequence[Column],
    cells: Iterable[Cell],
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    precisions: Sequence[Precision] = (Precision.BF16,),
    float32_only: Collection[Cell] = (),
    before: Mapping[str, CellResult] = MappingProxyType({}),
) -> dict[str, CellResult]:
    """Return the verdicts on one model's cells by id, with attributions for failed ones.

    Verdicts from `before`, on other cells of the model, are copied unchanged.
    """
    judge = OneModel(run, model, columns, scenarios, thresholds, precisions, float32_only)
    return judge.attribute_failures({**before, **judge.judge_cells(cells)}, columns)


def model_info(run: RunFolder, model: Model) -> ModelInfo:
    """Return what the reference found out about the model; zeros without a reference."""
    reference = run.group(model.id, REFERENCE.id)
    identity = reference.identity if reference else {}
    return ModelInfo(
        id=model.id,
        architecture=model.architecture,
        source=str(identity.get("source", "")),
        digest=str(identity.get("digest", "")),
        layers=int(identity.get("layers", 0)),
        width=int(identity.get("width", 0)),
        harder_than=model.harder_than,
        config=reference.config if reference else {},
    )


@dataclass(frozen=True, eq=False)
class OneModel:
    """Judges a model's cells and attributes failures, using all columns or some.

    Cells in `float32_only` were run in no other precision, unless the engine refuses float32.
    """

    run: RunFolder
    model: Model
    columns: Sequence[Column]
    scenarios: Mapping[str, Scenario]
    thresholds: Thresholds
    precisions: Sequence[Precision]
    float32_only: Collection[Cell] = ()
    #: Judges of engines without nnsight, and their results; each is computed once.
    _beside: dict[tuple[str, Precision], Columns] = field(default_factory=dict, init=False)
    _judged: dict[tuple[Cell, Precision], CellResult] = field(default_factory=dict, init=False)

    def judge_cells(self, cells: Iterable[Cell]) -> dict[str, CellResult]:
        """Return the verdicts by id, without attributions.

        One judge handles all columns of a case. It reuses noise floors of the previous case's judge
        (`before`) where the observations are equal, which changes no verdict.
        """
        by_case: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            by_case.setdefault((cell.scenario, cell.case), []).append(cell)
        results: dict[str, CellResult] = {}
        judge: Columns | None = None
        for (name, case_name), members in by_case.items():
            scenario, case = self.scenarios.get(name), self._find_case(name, case_name)
            judge = self._columns(scenario, case, self.precisions, before=judge)
            results |= {
                cell.id: judge.cell(cell, float32_only=cell in self.float32_only)
                for cell in members
            }
        return results

    def _find_case(self, scenario: str, name: str) -> Case | None:
        found, layers = self.scenarios.get(scenario), model_info(self.run, self.model).layers
        cases = found.expand(layers) if found and layers else ()
        return next((case for case in cases if case.name == name), None)

    def _columns(
        self,
        scenario: Scenario | None,
        case: Case | None,
        precisions: Sequence[Precision],
        before: Columns | None = None,
    ) -> Columns:
        context = (self.run, self.model, self.columns, scenario, case, self.thresholds)
        return Columns(*context, precisions, before=before)

    def attribute_failures(
        self, cells: Mapping[str, CellResult], columns: Sequence[Column]
    ) -> dict[str, CellResult]:
        """Return these cells. Each failed cell has the culprit that these columns support."""
        by_id = {column.id: column for column in columns}

        @cache
        def trust(column: str) -> str:
            return explain_trust(self.run, self.model, columns, by_id[column])

        return attribute_failures(cells, columns, self._alone, trust)

    def _alone(self, cell: CellResult) -> dict[str, CellResult]:
        """Judge what the cell's engine did without nnsight, with the same prompts and settings.

        A run is judged once for all cells that share it.
        """
        own_case, precision = self._find_case(cell.scenario, cell.case), cell.precision
        results = {}
        for name, scenario in WITHOUT_NNSIGHT.items():
            case = alone(name, own_case) if own_case else None
            if case is None:
                continue
            own = Cell(self.model.id, cell.backend, name, case.name)
            if self.run.outcome(own.model, gathered_in(own.backend, precision), own.key) is None:
                continue
            if (case.key, precision) not in self._beside:
                self._beside[case.key, precision] = self._columns(scenario, case, (precision,))
            if (own, precision) not in self._judged:
                self._judged[own, precision] = self._beside[case.key, precision].cell(own)
            results[name] = self._judged[own, precision]
        return results

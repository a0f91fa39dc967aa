"""One model's cells of a stored run: what each is, and who has to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from conformance.builtin.engine_alone import WITHOUT_NNSIGHT, case_of
from conformance.planning.jobs import REFERENCE
from conformance.records import (
    Cell,
    CellResult,
    Column,
    Model,
    ModelInfo,
    Precision,
    Thresholds,
)
from conformance.scenario import Scenario
from conformance.store import RunFolder, gathered_in
from conformance.verdicts.attributing import attributed, one_stage
from conformance.verdicts.columns import Columns
from conformance.verdicts.witness import confirmed


def judge_model(
    run: RunFolder,
    model: Model,
    columns: Sequence[Column],
    cells: Iterable[Cell],
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    precisions: Sequence[Precision] = (Precision.BF16,),
) -> dict[str, CellResult]:
    """The verdicts on one model's cells by id, and who is to blame for those that failed."""
    judge = OneModel(run, model, columns, scenarios, thresholds, precisions)
    return judge.blamed(judge.cells(cells), columns)


def model_info(run: RunFolder, model: Model) -> ModelInfo:
    """What the reference found the model to be; zeros when there is no reference."""
    reference = run.group(model.id, REFERENCE.id)
    identity = reference.identity if reference else {}
    return ModelInfo(
        id=model.id,
        architecture=model.architecture,
        source=str(identity.get("source", "")),
        digest=str(identity.get("digest", "")),
        layers=int(identity.get("layers", 0)),
        width=int(identity.get("width", 0)),
    )


@dataclass(frozen=True, eq=False)
class OneModel:
    """Judges a model's cells, and finds who is to blame: by all of the columns, or by some."""

    run: RunFolder
    model: Model
    columns: Sequence[Column]
    scenarios: Mapping[str, Scenario]
    thresholds: Thresholds
    precisions: Sequence[Precision]

    def cells(self, cells: Iterable[Cell]) -> dict[str, CellResult]:
        """The verdicts by id, case by case, the columns side by side. Nobody is blamed yet."""
        by_case: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            by_case.setdefault((cell.scenario, cell.case), []).append(cell)
        layers = model_info(self.run, self.model).layers
        results: dict[str, CellResult] = {}
        judge: Columns | None = None
        for (name, case_name), members in by_case.items():
            scenario = self.scenarios.get(name)
            cases = scenario.expand(layers) if scenario and layers else ()
            case = next((case for case in cases if case.name == case_name), None)
            context = (self.run, self.model, self.columns, scenario, case, self.thresholds)
            judge = Columns(*context, self.precisions, before=judge)
            results |= {cell.id: judge.cell(cell) for cell in members}
        return results

    def blamed(
        self, cells: Mapping[str, CellResult], columns: Sequence[Column]
    ) -> dict[str, CellResult]:
        """These cells, each failed one with who is to blame as far as these columns show it."""
        by_id = {column.id: column for column in columns}

        @cache
        def stands(column: str) -> str:
            return confirmed(self.run, self.model, columns, by_id[column])

        return attributed(
            cells,
            columns,
            lambda column: one_stage(column, columns),
            self._alone,
            lambda column: stands(column.id),
        )

    def _alone(self, cell: CellResult) -> dict[str, CellResult]:
        """What the cell's engine did with its prompts without nnsight, judged."""
        scenario = self.scenarios.get(cell.scenario)
        prompts = scenario.prompts if scenario else ()
        results = {}
        for name in WITHOUT_NNSIGHT:
            own = Cell(self.model.id, cell.backend, name, case_of(name, prompts).name)
            folder = gathered_in(own.backend, cell.precision)
            if self.run.outcome(own.model, folder, own.key) is not None:
                results[name] = self._beside(name, prompts, cell.precision).cell(own)
        return results

    @cached_property
    def _beside(self) -> Callable[[str, tuple[str, ...], Precision], Columns]:
        return cache(self._columns_without_nnsight)

    def _columns_without_nnsight(
        self, name: str, prompts: tuple[str, ...], precision: Precision
    ) -> Columns:
        case, scenario = case_of(name, prompts), WITHOUT_NNSIGHT[name]
        context = (self.run, self.model, self.columns, scenario, case, self.thresholds)
        return Columns(*context, (precision,))

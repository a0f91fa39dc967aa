"""One model's cells of a stored run, case by case, the columns side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from conformance.builtin import one_layer
from conformance.builtin.engine_alone import WITHOUT_NNSIGHT, case_of
from conformance.environments import command_of
from conformance.generated_tokens import by_member
from conformance.jobs import FORCED, REFERENCE
from conformance.judge.cell import Judgement, compare_exact, judge_cell
from conformance.judge.diagnosis import extent
from conformance.judge.diagnosis.first_bad_layer import place
from conformance.judge.measures.across_environments import Environments
from conformance.judge.measures.relations import same_bits
from conformance.records import (
    Attribution,
    Case,
    Cell,
    CellResult,
    Column,
    Model,
    ModelInfo,
    Outcome,
    Relation,
    Side,
    Status,
    Thresholds,
    Verdict,
)
from conformance.scenario import Scenario
from conformance.store import RunFolder
from conformance.verdicts.attributing import attributed, one_stage
from conformance.verdicts.truths import Truth, Truths

#: How gathering ended → the verdict where nothing is left to judge.
UNJUDGED: Mapping[Status, Verdict] = {
    Status.UNSUPPORTED: Verdict.UNSUPPORTED,
    Status.SKIPPED: Verdict.SKIPPED,
    Status.UNTESTABLE: Verdict.UNTESTABLE,
    Status.STRUCTURE: Verdict.STRUCTURE,
    Status.ERROR: Verdict.ERROR,
    Status.CRASH: Verdict.CRASH,
    Status.TIMEOUT: Verdict.TIMEOUT,
    Status.UNKNOWN: Verdict.UNKNOWN,
    Status.MISSING: Verdict.MISSING,
}


def judge_model(
    run: RunFolder,
    model: Model,
    columns: Sequence[Column],
    cells: Iterable[Cell],
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
) -> dict[str, CellResult]:
    """The verdicts on one model's cells by id: case by case, the columns side by side."""
    by_case: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_case.setdefault((cell.scenario, cell.case), []).append(cell)
    layers = model_info(run, model).layers
    found: dict[str, CellResult] = {}
    judge: _Columns | None = None
    for (name, case_name), members in by_case.items():
        scenario = scenarios.get(name)
        cases = scenario.expand(layers) if scenario and layers else ()
        case = next((case for case in cases if case.name == case_name), None)
        judge = _Columns(run, model, columns, scenario, case, thresholds, before=judge)
        found |= {cell.id: judge.cell(cell) for cell in members}

    @cache
    def without_nnsight(name: str, prompts: tuple[str, ...]) -> _Columns:
        case = case_of(name, prompts)
        return _Columns(run, model, columns, WITHOUT_NNSIGHT[name], case, thresholds)

    def alone(cell: CellResult) -> dict[str, CellResult]:
        """What the cell's engine did with its prompts without nnsight, judged."""
        scenario = scenarios.get(cell.scenario)
        prompts = scenario.prompts if scenario else ()
        results = {}
        for name in WITHOUT_NNSIGHT:
            own = Cell(model.id, cell.backend, name, case_of(name, prompts).name)
            if run.outcome(own.model, own.backend, own.key) is not None:
                results[name] = without_nnsight(name, prompts).cell(own)
        return results

    return attributed(found, columns, lambda column: one_stage(column, columns), alone)


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


class _Seen(NamedTuple):
    """What one column observed: by site, and its ids of the prompts."""

    observed: Mapping[str, Tensor]
    prompt_ids: tuple[tuple[int, ...], ...]


class _Columns:
    """One case of one model: its cells on all columns."""

    def __init__(
        self,
        run: RunFolder,
        model: Model,
        columns: Sequence[Column],
        scenario: Scenario | None,
        case: Case | None,
        thresholds: Thresholds,
        before: _Columns | None = None,
    ) -> None:
        self.run = run
        self.model = model
        self.columns = {column.id: column for column in columns}
        self.scenario = scenario
        self.case = case
        self.thresholds = thresholds
        self.truths: Truths | None = None
        if scenario and case:
            earlier = before.truths if before else None
            self.truths = Truths(run, model.id, case, twin=scenario.twin(case), before=earlier)
        self._observed: dict[str, dict[str, Tensor]] = {}
        self._judgements: list[tuple[_Seen, Truth, Judgement]] = []
        self._environments = Environments(columns)

    def cell(self, cell: Cell) -> CellResult:
        outcome = self.run.outcome(cell.model, cell.backend, cell.key)
        blank = CellResult(
            id=cell.id,
            model=cell.model,
            architecture=self.model.architecture,
            backend=cell.backend,
            scenario=cell.scenario,
            case=cell.case,
            verdict=Verdict.UNKNOWN,
            reason="",
            seconds=outcome.seconds if outcome else 0.0,
            command=f"conformance run -m {cell.model} "
            f"{command_of(self.columns[cell.backend])} -k '{cell.id}'",
            layers=self.case.layers if self.case else {},
        )
        if outcome is None:
            group = self.run.group(cell.model, cell.backend)
            reason = group.reason if group and group.reason else "the run ended before it"
            return replace(blank, verdict=Verdict.MISSING, reason=reason, harness=True)
        blank = replace(blank, prompt_ids=outcome.prompt_ids)
        if outcome.status is not Status.OK:
            return replace(
                blank,
                verdict=UNJUDGED[outcome.status],
                reason=outcome.reason,
                detail=outcome.detail,
                harness=outcome.harness,
            )
        return self._judged(blank, outcome)

    def _judged(self, blank: CellResult, outcome: Outcome) -> CellResult:
        if self.scenario is None or self.case is None or self.truths is None:
            words = "no reference, or the scenario file has no such case any more: run again"
            return replace(blank, reason=words, harness=True)
        observed = self.observed(blank.backend)
        truth = self.truths.along(observed)
        if isinstance(truth, str):
            return replace(blank, reason=truth, harness=True)
        judgement = self._judgement(
            self.scenario, self.case, truth, _Seen(observed, outcome.prompt_ids)
        )
        result = replace(
            blank,
            verdict=judgement.verdict,
            reason=judgement.reason,
            observations=judgement.observations,
            relations=judgement.relations,
            worst_site=judgement.worst_site,
            worst_ratio=judgement.worst_ratio,
            harness=judgement.harness,
            diagnosis=judgement.diagnosis,
        )
        if result.verdict is Verdict.DROPPED:
            words = extent.no_effect(result.observations, result.layers, result.backend)
            result = replace(result, diagnosis=f"{words}; {result.diagnosis}".rstrip("; "))
        result = self._against_one_stage(self._placed(result, observed), observed)
        elsewhere = self._environments.relations(result.backend, self.observed)
        return replace(result, relations=(*result.relations, *elsewhere))

    def _judgement(self, scenario: Scenario, case: Case, truth: Truth, seen: _Seen) -> Judgement:
        """Judging is pure: columns that observed the very same bits are judged once."""
        for known, by, judgement in self._judgements:
            same = by is truth and known.prompt_ids == seen.prompt_ids
            if same and same_bits(known.observed, seen.observed):
                return judgement
        judgement = judge_cell(
            seen.observed,
            truth.reference,
            twin=scenario.twin(case),
            equal=scenario.equal(case),
            prompt_ids=seen.prompt_ids,
            truth_ids=truth.prompt_ids,
            thresholds=self.thresholds,
        )
        self._judgements.append((seen, truth, judgement))
        return judgement

    def _placed(self, result: CellResult, observed: Mapping[str, Tensor]) -> CellResult:
        """Which layers introduce the error, where the reference was given their inputs.

        What is missing was not computed wrongly, so no layer is to blame for it.
        """
        absent = result.verdict is Verdict.MISSING
        if self.case is None or result.verdict.passes or absent:
            return result
        case = one_layer.case_of(self.case, result.backend, Path())
        outcome = self.run.outcome(self.model.id, FORCED.id, case.key)
        if outcome is None or outcome.status is not Status.OK:
            return result
        words = place(
            observed,
            by_member(self.run.observations(self.model.id, FORCED.id, case.key)),
            outcome.prompt_ids,
            result.observations,
            self.thresholds,
        )
        return replace(result, diagnosis="; ".join(filter(None, (result.diagnosis, words))))

    def observed(self, backend: str) -> dict[str, Tensor]:
        if backend not in self._observed:
            key = self.case.key if self.case else ""
            self._observed[backend] = self.run.observations(self.model.id, backend, key)
        return self._observed[backend]

    def _against_one_stage(self, result: CellResult, observed: Mapping[str, Tensor]) -> CellResult:
        """On a CPU, several pipeline stages give the very bits that one stage gives."""
        twin = one_stage(self.columns[result.backend], tuple(self.columns.values()))
        if twin is None:
            return result
        group = self.run.group(self.model.id, result.backend)
        if group is None or group.identity.get("device") != "cpu":
            return result
        theirs = self.observed(twin.id)
        if not theirs:
            return result
        mismatches = compare_exact(observed, theirs)
        said = "; ".join(f"{one.site}: {one.message}" for one in mismatches[:5])
        relation = Relation(f"bitwise equal to {twin.id}", not mismatches, said)
        result = replace(result, relations=(*result.relations, relation))
        if relation.holds or not result.verdict.passes:
            return result
        reason = f"differs from {twin.id}, which on a CPU must be bitwise equal: {said}"
        blame = Attribution(Side.PIPELINE, f"{twin.id} computes the same on one stage")
        return replace(result, verdict=Verdict.WRONG, reason=reason, attribution=blame)

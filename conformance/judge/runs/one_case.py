"""One case of one model: its cells on all columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from conformance.judge.cell.both_precisions import VerdictDecision, decide
from conformance.judge.cell.diagnosis import extent
from conformance.judge.cell.diagnosis.first_bad_layer import place, with_own_input
from conformance.judge.cell.judge_cell import Judgement, compare_exact, judge_cell
from conformance.judge.cell.measures.draws import Draws
from conformance.judge.cell.measures.relations import BITWISE, compare_environments, same_bits
from conformance.judge.cell.reference import REFERENCE_RUN
from conformance.judge.runs.attributing import find_one_stage
from conformance.judge.runs.reference_reader import (
    CaseReference,
    ReferenceReader,
    find_definitions,
    subtract_definition,
)
from conformance.runner.environments import command_of
from conformance.runner.planning.jobs import FORCED
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.builtin import one_layer
from conformance.spec.generated_tokens import by_member
from conformance.spec.records import (
    Answer,
    Case,
    Cell,
    CellResult,
    Column,
    Group,
    Model,
    Outcome,
    Precision,
    Relation,
    Status,
    Thresholds,
    Verdict,
)
from conformance.spec.scenario import Scenario


def unjudged(outcome: Outcome, precision: Precision) -> Answer:
    """Return one precision's answer for a cell that cannot be judged: its run's status."""
    return Answer(
        precision,
        Verdict(outcome.status),
        outcome.reason,
        seconds=outcome.seconds,
        detail=outcome.detail,
        harness=outcome.harness,
        frames=outcome.frames,
    )


def cell_result(cell: Cell, decision: VerdictDecision, **more: Any) -> CellResult:
    """Build a cell's result from the decision; `more` are the remaining fields."""
    leading = decision.leading
    return CellResult(
        id=cell.id,
        model=cell.model,
        backend=cell.backend,
        scenario=cell.scenario,
        case=cell.case,
        verdict=decision.verdict,
        observations=leading.observations,
        relations=leading.relations,
        worst_site=leading.worst_site,
        worst_ratio=leading.worst_ratio,
        precision=leading.precision,
        decided=leading.verdict,
        beside=decision.beside,
        frames=leading.frames,
        predicted=leading.predicted,
        **more,
    )


class _Observation(NamedTuple):
    """One column's observations by site, and its token ids of the prompts."""

    observed: Mapping[str, Tensor]
    prompt_ids: tuple[tuple[int, ...], ...]


class Columns:
    """One case of one model: its cells on all columns."""

    def __init__(
        self,
        run: RunFolder,
        model: Model,
        columns: Sequence[Column],
        scenario: Scenario | None,
        case: Case | None,
        thresholds: Thresholds,
        precisions: Sequence[Precision],
        before: Columns | None = None,
    ) -> None:
        self.run = run
        self.model = model
        self.columns = {column.id: column for column in columns}
        self.scenario = scenario
        self.case = case
        self.thresholds = thresholds
        # Float32 first: its answer says whether bf16 decides alone.
        self.precisions = sorted(precisions, reverse=True)
        self.readers: dict[Precision, ReferenceReader] = {
            precision: ReferenceReader(
                run,
                model.id,
                case,
                has_edit=scenario.twin(case),
                precision=precision,
                before=before.readers.get(precision) if before else None,
            )
            for precision in self.precisions
            if scenario is not None and case is not None
        }
        self._observed: dict[str, dict[str, Tensor]] = {}
        self._judgements: list[tuple[_Observation, CaseReference, dict[str, bool], Judgement]] = []
        self._environments: dict[tuple[str, Precision], dict[str, tuple[Relation, ...]]] = {}

    def cell(self, cell: Cell, *, float32_only: bool = False) -> CellResult:
        """Return the cell's verdict from both precisions or, if `float32_only`, from one."""
        answers: list[Answer] = []
        for precision in [Precision.FLOAT32] if float32_only else self.precisions:
            alone = all(known.verdict.neutral for known in answers)
            answers.append(self._answer(cell, precision, alone=alone))
        decision = decide(answers)
        outcomes = [
            outcome
            for answer in answers
            if (outcome := self._outcome(cell, answer.precision)) is not None
        ]
        options = command_of(self.columns[cell.backend])
        return cell_result(
            cell,
            decision,
            architecture=self.model.architecture,
            reason=decision.reason,
            seconds=sum(answer.seconds for answer in answers),
            command=f"conformance run -m {cell.model} {options} -k '{cell.id}'",
            detail=decision.leading.detail,
            harness=decision.leading.harness,
            diagnosis=decision.leading.diagnosis,
            layers=self.case.layers if self.case else {},
            prompt_ids=next((outcome.prompt_ids for outcome in outcomes), ()),
            left=tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.left)),
        )

    def _outcome(self, cell: Cell, precision: Precision) -> Outcome | None:
        return self.run.outcome(cell.model, gathered_in(cell.backend, precision), cell.key)

    def _group(self, backend: str, precision: Precision) -> Group | None:
        return self.run.group(self.model.id, gathered_in(backend, precision))

    def _answer(self, cell: Cell, precision: Precision, *, alone: bool) -> Answer:
        """Return one precision's answer; `alone` if no other precision decides correctness."""
        outcome = self._outcome(cell, precision)
        if outcome is None:
            group = self._group(cell.backend, precision)
            reason = group.reason if group and group.reason else "the run ended before it"
            return Answer(precision, Verdict.MISSING, reason, harness=True)
        if outcome.status is not Status.OK:
            return unjudged(outcome, precision)
        reader = self.readers.get(precision)
        if self.scenario is None or self.case is None or reader is None:
            words = "no reference, or the scenario file has no such case any more: run again"
            return Answer(precision, Verdict.UNKNOWN, words, harness=True)
        column = gathered_in(cell.backend, precision)
        observation = _Observation(self.observed(column), outcome.prompt_ids)
        case_reference = reader.along(observation.observed)
        if isinstance(case_reference, str):
            return Answer(precision, Verdict.UNKNOWN, case_reference, harness=True)
        judgement = self._judgement(
            cell.backend, precision, case_reference, observation, alone=alone
        )
        if judgement.verdict is Verdict.UNKNOWN and case_reference.lacking:
            judgement = replace(judgement, reason=f"{judgement.reason}: {case_reference.lacking}")
        diagnosis = [judgement.diagnosis, self._placed(column, precision, judgement, observation)]
        if judgement.verdict is Verdict.DROPPED:
            effect = extent.no_effect(judgement.observations, self.case.layers, cell.backend)
            diagnosis.insert(0, effect)
        return Answer(
            precision,
            judgement.verdict,
            judgement.reason,
            seconds=outcome.seconds,
            observations=judgement.observations,
            relations=judgement.relations,
            worst_site=judgement.worst_site,
            worst_ratio=judgement.worst_ratio,
            harness=judgement.harness,
            diagnosis="; ".join(filter(None, diagnosis)),
            predicted=self._predicted(cell.backend, case_reference, observation, judgement),
        )

    def _judge(
        self, observation: _Observation, case_reference: CaseReference, **more: Any
    ) -> Judgement:
        assert self.scenario is not None  # noqa: S101 - the caller has looked
        assert self.case is not None  # noqa: S101
        return judge_cell(
            observation.observed,
            case_reference.reference,
            has_edit=self.scenario.twin(self.case),
            prompt_ids=observation.prompt_ids,
            reference_ids=case_reference.prompt_ids,
            limits=self.thresholds.of(case_reference.reference.precision),
            **more,
        )

    def _predicted(
        self,
        backend: str,
        case_reference: CaseReference,
        observation: _Observation,
        judgement: Judgement,
    ) -> tuple[str, ...]:
        """Return the definitions of the model with which a failed cell would pass.

        Rules without tolerance are not checked again: they do not depend on a definition.
        """
        defined = find_definitions(case_reference.members)
        if not defined or not judgement.verdict.fails:
            return ()
        precision = case_reference.reference.precision
        group = self._group(backend, precision)
        bitwise = group is not None and group.bitwise
        fine = {Verdict.EXACT, Verdict.MATCH}
        if precision is Precision.BF16:
            fine |= {Verdict.DRIFT, Verdict.VACUOUS}
        names = []
        for name, values in defined.items():
            truth = case_reference.members[REFERENCE_RUN]
            rest = subtract_definition(observation.observed, truth, values)
            moved = observation._replace(observed=rest)
            context = {"explain": False, "alone": False, "bitwise": bitwise}
            if self._judge(moved, case_reference, **context).verdict in fine:
                names.append(name)
        return tuple(names)

    def _judgement(
        self,
        backend: str,
        precision: Precision,
        case_reference: CaseReference,
        observation: _Observation,
        *,
        alone: bool,
    ) -> Judgement:
        """Judge a cell; columns with the same bits are judged once, since judging is pure.

        A judgement is reused only if the relations to other columns hold or gate nothing.
        """
        assert self.scenario is not None  # noqa: S101 - the caller has looked
        assert self.case is not None  # noqa: S101
        relations = self._across(backend, precision)
        if alone and precision is Precision.BF16:
            relations += self._with_own_input(gathered_in(backend, precision), observation)
        group = self._group(backend, precision)
        rules = {
            "alone": alone,
            "bitwise": group is not None and group.bitwise,
            "bitwise_beside": group is not None and group.bitwise_beside,
            "batch_invariant": group is not None and group.batch_invariant,
        }
        for known, by, held, judgement in self._judgements:
            same = by is case_reference and held == rules
            same = same and known.prompt_ids == observation.prompt_ids
            if same and same_bits(known.observed, observation.observed):
                return replace(judgement, relations=(*judgement.relations, *relations))
        context = {
            **rules,
            "equal": self.scenario.equal(self.case),
            "equal_alone": self.scenario.equal_alone(self.case),
            "draws": draws_of(self.case) if self.readers[precision].drawn() else None,
        }
        if not all(relation.holds for relation in relations if relation.gates):
            return self._judge(observation, case_reference, relations=relations, **context)
        judgement = self._judge(observation, case_reference, **context)
        self._judgements.append((observation, case_reference, rules, judgement))
        return replace(judgement, relations=(*judgement.relations, *relations))

    def _across(self, column: str, precision: Precision) -> tuple[Relation, ...]:
        """Return the relations of this case to other columns."""
        backend = self.columns[column].backend.id
        if (backend, precision) not in self._environments:
            self._environments[backend, precision] = compare_environments(
                {
                    name: self.observed(gathered_in(name, precision))
                    for name, other in self.columns.items()
                    if other.backend.id == backend
                }
            )
        elsewhere = self._environments[backend, precision][column]
        return (*self._as_on_one_stage(column, precision), *elsewhere)

    def _as_on_one_stage(self, backend: str, precision: Precision) -> tuple[Relation, ...]:
        """Check that, on a CPU, several pipeline stages are bitwise equal to one stage."""
        single_stage = find_one_stage(self.columns[backend], tuple(self.columns.values()))
        group = self._group(backend, precision)
        on_cpu = group is not None and group.identity.get("device") == "cpu"
        if single_stage is None or not on_cpu:
            return ()
        on_one_stage = self.observed(gathered_in(single_stage.id, precision))
        if not on_one_stage:
            return ()
        mismatches = compare_exact(self.observed(gathered_in(backend, precision)), on_one_stage)
        detail = "; ".join(f"{mismatch.site}: {mismatch.message}" for mismatch in mismatches[:5])
        return (Relation(f"{BITWISE} {single_stage.id}", not mismatches, detail),)

    def _placed(
        self, column: str, precision: Precision, judgement: Judgement, observation: _Observation
    ) -> str:
        """Say which layers introduce the error, if the reference was given their inputs.

        A missing observation was not computed wrongly, so no layer is the culprit.
        """
        if judgement.verdict.passes or judgement.verdict is Verdict.MISSING:
            return ""
        fed = self._fed(column)
        if fed is None:
            return ""
        return place(
            observation.observed,
            *fed,
            judgement.observations,
            self.thresholds.of(precision),
            precision,
        )

    def _with_own_input(self, column: str, observation: _Observation) -> tuple[Relation, ...]:
        """Check each layer's output for its own input, if bf16 decides alone."""
        fed = self._fed(column)
        if fed is None:
            return ()
        limits = self.thresholds.of(Precision.BF16)
        relation = with_own_input(observation.observed, fed[0], limits)
        return () if relation is None else (relation,)

    def _fed(
        self, column: str
    ) -> tuple[dict[str, dict[str, Tensor]], tuple[tuple[int, ...], ...]] | None:
        """Return what the reference's layers make of a column's streams, if that was run."""
        if self.case is None:
            return None
        case = one_layer.case_of(self.case, column, Path())
        outcome = self.run.outcome(self.model.id, FORCED.id, case.key)
        if outcome is None or outcome.status is not Status.OK:
            return None
        values = by_member(self.run.observations(self.model.id, FORCED.id, case.key))
        return values, outcome.prompt_ids

    def observed(self, column: str) -> dict[str, Tensor]:
        """Load a column's observations of this case in one precision, by folder name."""
        if column not in self._observed:
            key = self.case.key if self.case else ""
            self._observed[column] = self.run.observations(self.model.id, column, key)
        return self._observed[column]


def draws_of(case: Case) -> Draws:
    """Return the sampling parameters in a case's options."""
    return Draws(
        temperature=float(case.options.get("temperature", 1.0)),
        top_p=float(case.options.get("top_p", 1.0)),
        top_k=int(case.options.get("top_k", 0)),
    )

"""One case of one model: its cells on all columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from conformance.judge.cell.both_precisions import VerdictDecision, decide
from conformance.judge.cell.diagnosis import extent
from conformance.judge.cell.diagnosis.first_bad_layer import place, with_own_input
from conformance.judge.cell.judge_cell import Judgement, compare_exact, judge_cell
from conformance.judge.cell.measures.draws import Draws
from conformance.judge.cell.measures.relations import BITWISE, compare_environments, same_bits
from conformance.judge.cell.measures.structure import Ids
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
    """Build a cell's result from the decision.

    `more` are the fields that are not, or not as they are, those of the deciding answer.
    """
    leading = decision.leading
    evidence = {field.name: getattr(leading, field.name) for field in fields(leading)}
    what = {"verdict": decision.verdict, "reason": decision.reason, "beside": decision.beside}
    where = {name: getattr(cell, name) for name in ("id", "model", "backend", "scenario", "case")}
    return CellResult(**{**evidence, **what, **where, "decided": leading.verdict, **more})


class _Observation(NamedTuple):
    """One column's observations by site, and its token ids of the prompts."""

    observed: Mapping[str, Tensor]
    prompt_ids: Ids


class Columns:
    """One case of one model: its cells on all columns.

    Without the scenario or its case, which may be gone, no cell that ran can be judged.
    """

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
        self.run, self.model, self.case, self.thresholds = run, model, case, thresholds
        self.columns = {column.id: column for column in columns}
        # Float32 first: its answer says whether bf16 decides alone.
        self.precisions = sorted(precisions, reverse=True)
        self.readers: dict[Precision, ReferenceReader] = {}
        if scenario is not None and case is not None:
            self.has_edit = scenario.twin(case)
            self.equal, self.equal_alone = scenario.equal(case), scenario.equal_alone(case)
            for precision in self.precisions:
                earlier = before.readers.get(precision) if before else None
                self.readers[precision] = ReferenceReader(
                    *(run, model.id, case, earlier), has_edit=self.has_edit, precision=precision
                )
        self._observed: dict[str, dict[str, Tensor]] = {}
        self._judgements: list[tuple[_Observation, CaseReference, dict[str, bool], Judgement]] = []
        self._environments: dict[tuple[str, Precision], dict[str, tuple[Relation, ...]]] = {}

    def cell(self, cell: Cell, *, float32_only: bool = False) -> CellResult:
        """Return the cell's verdict from both precisions or, if `float32_only`, from float32 and
        from bf16 if it ran there because the engine refuses float32.
        """
        answers: list[Answer] = []
        outcomes: list[Outcome] = []
        for precision in self.precisions:
            outcome = self.run.outcome(cell.model, gathered_in(cell.backend, precision), cell.key)
            if outcome is None and float32_only and precision is Precision.BF16:
                continue
            outcomes += [outcome] if outcome is not None else []
            alone = all(known.verdict.neutral for known in answers)
            answers.append(self._answer(cell.backend, precision, outcome, alone=alone))
        options = command_of(self.columns[cell.backend])
        return cell_result(
            cell,
            decide(answers),
            architecture=self.model.architecture,
            seconds=sum(answer.seconds for answer in answers),
            command=f"conformance run -m {cell.model} {options} -k '{cell.id}'",
            layers=self.case.layers if self.case else {},
            prompt_ids=next((outcome.prompt_ids for outcome in outcomes), ()),
            left=tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.left)),
        )

    def _group(self, backend: str, precision: Precision) -> Group | None:
        return self.run.group(self.model.id, gathered_in(backend, precision))

    def _answer(
        self, backend: str, precision: Precision, outcome: Outcome | None, *, alone: bool
    ) -> Answer:
        """Return one precision's answer; `alone` if no other precision decides correctness."""
        group, reader = self._group(backend, precision), self.readers.get(precision)
        if outcome is None:
            reason = group.reason if group and group.reason else "the run ended before it"
            return Answer(precision, Verdict.MISSING, reason, harness=True)
        if outcome.status is not Status.OK:
            return unjudged(outcome, precision)
        if self.case is None or reader is None:
            words = "no reference, or the scenario file has no such case any more: run again"
            return Answer(precision, Verdict.UNKNOWN, words, harness=True)
        column = gathered_in(backend, precision)
        observation = _Observation(self.observed(column), outcome.prompt_ids)
        case_reference = reader.along(observation.observed)
        if isinstance(case_reference, str):
            return Answer(precision, Verdict.UNKNOWN, case_reference, harness=True)
        rules = {
            "alone": alone,
            "bitwise": group is not None and group.bitwise,
            "bitwise_beside": group is not None and group.bitwise_beside,
            "batch_invariant": group is not None and group.batch_invariant,
        }
        judgement = self._judgement(backend, case_reference, observation, rules)
        if judgement.verdict is Verdict.UNKNOWN and case_reference.lacking:
            judgement = replace(judgement, reason=f"{judgement.reason}: {case_reference.lacking}")
        diagnosis = [judgement.diagnosis]
        if judgement.verdict is Verdict.DROPPED:
            effect = extent.no_effect(judgement.observations, self.case.layers, backend)
            diagnosis.insert(0, effect)
        # A missing observation was not computed wrongly, so no layer is the culprit.
        failed = not judgement.verdict.passes and judgement.verdict is not Verdict.MISSING
        if failed and (fed := self._fed(column)) is not None:
            limits = self.thresholds.of(precision)
            words = place(observation.observed, *fed, judgement.observations, limits, precision)
            diagnosis.append(words)
        return judgement.answer(
            precision,
            seconds=outcome.seconds,
            diagnosis="; ".join(filter(None, diagnosis)),
            predicted=self._predicted(case_reference, observation, judgement, rules["bitwise"]),
        )

    def _judge(
        self, observation: _Observation, case_reference: CaseReference, **more: Any
    ) -> Judgement:
        return judge_cell(
            observation.observed,
            case_reference.reference,
            has_edit=self.has_edit,
            prompt_ids=observation.prompt_ids,
            reference_ids=case_reference.prompt_ids,
            limits=self.thresholds.of(case_reference.reference.precision),
            **more,
        )

    def _predicted(
        self,
        case_reference: CaseReference,
        observation: _Observation,
        judgement: Judgement,
        bitwise: bool,
    ) -> tuple[str, ...]:
        """Return the definitions of the model with which a failed cell would pass.

        Rules without tolerance are not checked again: they do not depend on a definition.
        """
        if not judgement.verdict.fails:
            return ()
        fine = {Verdict.EXACT, Verdict.MATCH}
        if case_reference.reference.precision is Precision.BF16:
            fine |= {Verdict.DRIFT, Verdict.VACUOUS}
        names = []
        for name, values in find_definitions(case_reference.members).items():
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
        case_reference: CaseReference,
        observation: _Observation,
        rules: dict[str, bool],
    ) -> Judgement:
        """Judge a cell; columns with the same bits are judged once, since judging is pure.

        A judgement is reused only if the relations to other columns hold or gate nothing.
        """
        precision = case_reference.reference.precision
        relations = self._across(backend, precision)
        if rules["alone"] and precision is Precision.BF16:
            # Bf16 decides alone: each layer's output is checked for its own input.
            fed = self._fed(gathered_in(backend, precision))
            limits = self.thresholds.of(precision)
            own = with_own_input(observation.observed, fed[0], limits) if fed else None
            relations += () if own is None else (own,)
        for known, by, held, judgement in self._judgements:
            same = by is case_reference and held == rules
            same = same and known.prompt_ids == observation.prompt_ids
            if same and same_bits(known.observed, observation.observed):
                return replace(judgement, relations=(*judgement.relations, *relations))
        drawn = self.case is not None and self.readers[precision].drawn()
        context: dict[str, Any] = {
            **rules,
            "equal": self.equal,
            "equal_alone": self.equal_alone,
            "draws": draws_of(self.case) if self.case and drawn else None,
        }
        if not all(relation.holds for relation in relations if relation.gates):
            return self._judge(observation, case_reference, relations=relations, **context)
        judgement = self._judge(observation, case_reference, **context)
        self._judgements.append((observation, case_reference, rules, judgement))
        return replace(judgement, relations=(*judgement.relations, *relations))

    def _across(self, column: str, precision: Precision) -> tuple[Relation, ...]:
        """Return the relations of this case to other columns.

        On a CPU, several pipeline stages must be bitwise equal to one stage.
        """
        backend = self.columns[column].backend.id
        if (backend, precision) not in self._environments:
            same = [name for name, other in self.columns.items() if other.backend.id == backend]
            self._environments[backend, precision] = compare_environments(
                {name: self.observed(gathered_in(name, precision)) for name in same}
            )
        elsewhere = self._environments[backend, precision][column]
        single_stage = find_one_stage(self.columns[column], self.columns.values())
        group = self._group(column, precision)
        on_cpu = group is not None and group.identity.get("device") == "cpu"
        if single_stage is None or not on_cpu:
            return elsewhere
        on_one_stage = self.observed(gathered_in(single_stage.id, precision))
        if not on_one_stage:
            return elsewhere
        mismatches = compare_exact(self.observed(gathered_in(column, precision)), on_one_stage)
        detail = "; ".join(f"{mismatch.site}: {mismatch.message}" for mismatch in mismatches[:5])
        return (Relation(f"{BITWISE} {single_stage.id}", not mismatches, detail), *elsewhere)

    def _fed(self, column: str) -> tuple[dict[str, dict[str, Tensor]], Ids] | None:
        """Return what the reference's layers make of a column's streams, if that was run."""
        if self.case is None:
            return None
        key = one_layer.case_of(self.case, column, Path()).key
        outcome = self.run.outcome(self.model.id, FORCED.id, key)
        if outcome is None or outcome.status is not Status.OK:
            return None
        return by_member(self.run.observations(self.model.id, FORCED.id, key)), outcome.prompt_ids

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

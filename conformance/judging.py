"""A stored run → its results: every planned cell gets a verdict. No engine is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from conformance import plan
from conformance.campaign import FORCED, REFERENCE
from conformance.continuations import continuation, differing, truth_of
from conformance.errors import ConformanceError, ExitCode
from conformance.judge.cell import compare_exact, judge_cell
from conformance.records import (
    SCHEMA,
    Backend,
    Case,
    Cell,
    CellResult,
    Environment,
    Footer,
    Group,
    Model,
    ModelInfo,
    Outcome,
    Relation,
    Results,
    RunInfo,
    Site,
    Status,
    Thresholds,
    Verdict,
)
from conformance.scenario import Scenario
from conformance.store import RunFolder

#: How gathering ended → the verdict where nothing is left to judge.
UNJUDGED: Mapping[Status, Verdict] = {
    Status.UNSUPPORTED: Verdict.UNSUPPORTED,
    Status.SKIPPED: Verdict.SKIPPED,
    Status.STRUCTURE: Verdict.STRUCTURE,
    Status.ERROR: Verdict.ERROR,
    Status.CRASH: Verdict.CRASH,
    Status.TIMEOUT: Verdict.TIMEOUT,
    Status.UNKNOWN: Verdict.UNKNOWN,
    Status.MISSING: Verdict.MISSING,
}


@dataclass(frozen=True)
class Truth:
    """The reference's observations of one case: by member and site, and the prompts' ids."""

    members: Mapping[str, Mapping[str, Tensor]]
    prompt_ids: tuple[tuple[int, ...], ...]


def judge_run(
    run: RunFolder,
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    *,
    info: RunInfo,
    environment: Environment,
    on_group: Callable[[str, str], None] = lambda model, backend: None,
) -> Results:
    """The verdict on every planned cell of a stored run.

    Raises ConformanceError for a run without a plan or with damaged observations.
    """
    planned = run.plan()
    models = {model.id: model for model in planned.models}
    backends = {backend.id: backend for backend in planned.backends}
    results: list[CellResult] = []
    for (model_id, backend_id), cells in plan.groups(planned.cells).items():
        judged = _Group(run, models[model_id], backends[backend_id], scenarios, thresholds)
        results += [judged.cell(cell, planned.backends) for cell in cells]
        on_group(model_id, backend_id)
    verdicts = Counter(str(cell.verdict) for cell in results)
    exit_code = exit_code_of(results)
    return Results(
        schema=SCHEMA,
        run=info,
        environment=replace(environment, thresholds=thresholds),
        models=tuple(_model_info(run, model) for model in planned.models),
        backends=planned.backends,
        scenarios=tuple(
            scenario.info()
            for scenario in scenarios.values()
            if any(cell.scenario == scenario.name for cell in planned.cells)
        ),
        groups=_groups(run),
        cells=tuple(results),
        footer=Footer(
            planned=len(planned.cells),
            judged=len(results),
            verdicts=dict(sorted(verdicts.items())),
            exit_code=exit_code,
        ),
    )


def exit_code_of(cells: Sequence[CellResult]) -> ExitCode:
    """3 when something of ours failed, else 1 when an unexpected cell did, else 0."""
    failed = [cell for cell in cells if cell.verdict.fails and not cell.expected]
    if any(cell.harness for cell in failed):
        return ExitCode.HARNESS
    return ExitCode.UNEXPECTED if failed else ExitCode.OK


class _Group:
    """The cells of one model and backend, and what they are compared with."""

    def __init__(
        self,
        run: RunFolder,
        model: Model,
        backend: Backend,
        scenarios: Mapping[str, Scenario],
        thresholds: Thresholds,
    ) -> None:
        self.run = run
        self.model = model
        self.backend = backend
        self.scenarios = scenarios
        self.thresholds = thresholds
        reference = run.group(model.id, REFERENCE.id)
        self.layers = int(reference.identity.get("layers", 0)) if reference else 0

    def cell(self, cell: Cell, backends: Sequence[Backend]) -> CellResult:
        outcome = self.run.outcome(cell.model, cell.backend, cell.key)
        result = self._blank(cell)
        if outcome is None:
            return replace(
                result, verdict=Verdict.MISSING, reason="the run ended before this cell", harness=True
            )
        result = replace(result, seconds=outcome.seconds, prompt_ids=outcome.prompt_ids)
        if outcome.status is not Status.OK:
            return replace(
                result,
                verdict=UNJUDGED[outcome.status],
                reason=outcome.reason,
                detail=outcome.detail,
                harness=outcome.harness,
            )
        if not self.layers:
            words = "the reference did not load, so there is nothing to compare with"
            return replace(result, reason=words, harness=True)
        scenario = self.scenarios.get(cell.scenario)
        case = self._case(scenario, cell.case)
        if scenario is None or case is None:
            return replace(
                result,
                reason=f"the scenario file has no case {cell.case!r} any more: run it again",
                harness=True,
            )
        result = replace(result, layers=case.layers)
        return self._judged(result, scenario, case, outcome, backends)

    def _blank(self, cell: Cell) -> CellResult:
        return CellResult(
            id=cell.id,
            model=cell.model,
            architecture=self.model.architecture,
            backend=cell.backend,
            scenario=cell.scenario,
            case=cell.case,
            verdict=Verdict.UNKNOWN,
            reason="",
            seconds=0.0,
            command=f"conformance run -m {cell.model} -b {cell.backend} -k '{cell.id}'",
        )

    def _case(self, scenario: Scenario | None, name: str) -> Case | None:
        cases = scenario.expand(self.layers) if scenario and self.layers else ()
        return next((case for case in cases if case.name == name), None)

    def _judged(
        self,
        result: CellResult,
        scenario: Scenario,
        case: Case,
        outcome: Outcome,
        backends: Sequence[Backend],
    ) -> CellResult:
        observed = self.run.observations(self.model.id, self.backend.id, case.key)
        truth = self._truth(case, observed)
        if isinstance(truth, str):
            return replace(result, reason=truth, harness=True)
        judgement = judge_cell(
            observed,
            truth.members,
            twin=scenario.twin(case),
            equal=scenario.equal,
            prompt_ids=outcome.prompt_ids,
            truth_ids=truth.prompt_ids,
            thresholds=self.thresholds,
        )
        result = replace(
            result,
            verdict=judgement.verdict,
            reason=judgement.reason,
            observations=judgement.observations,
            relations=judgement.relations,
            worst_site=judgement.worst_site,
            worst_ratio=judgement.worst_ratio,
            harness=judgement.harness,
            diagnosis=judgement.diagnosis,
        )
        return self._same_as_one_stage(result, case, observed, backends)

    def _truth(self, case: Case, observed: Mapping[str, Tensor]) -> Truth | str:
        """The reference along this candidate's own tokens, or why there is none.

        A run in which the candidate chose other tokens is taken from the reference that was
        held to them. Where that is absent the plain one stays, and the judge says so.
        """
        plain = self._reference(REFERENCE.id, case)
        if isinstance(plain, str):
            return plain
        prompts = len(case.prompts)
        other = differing(
            continuation(observed, prompts), continuation(plain.members["truth"], prompts)
        )
        if not other:
            return plain
        forced = self._reference(FORCED.id, replace(case, forced=other))
        return plain if isinstance(forced, str) else merged(plain, forced, set(other))

    def _reference(self, backend: str, case: Case) -> Truth | str:
        outcome = self.run.outcome(self.model.id, backend, case.key)
        if outcome is None or outcome.status is not Status.OK:
            words = outcome.reason if outcome else "it did not run"
            return f"nothing to compare with: the reference failed: {words}"
        values = self.run.observations(self.model.id, backend, case.key)
        members: dict[str, dict[str, Tensor]] = {"truth": truth_of(values)}
        for key, value in values.items():
            member, _, site = key.partition("|")
            members.setdefault(member, {})[site] = value
        return Truth(members, outcome.prompt_ids)

    def _same_as_one_stage(
        self,
        result: CellResult,
        case: Case,
        observed: Mapping[str, Tensor],
        backends: Sequence[Backend],
    ) -> CellResult:
        """On a CPU, several pipeline stages give the very bits that one stage gives."""
        group = self.run.group(self.model.id, self.backend.id)
        twin = one_stage(self.backend, backends)
        if twin is None or group is None or group.identity.get("device") != "cpu":
            return result
        theirs = self.run.observations(self.model.id, twin.id, case.key)
        if not theirs:
            return result
        mismatches = compare_exact(observed, theirs)
        relation = Relation(
            f"bitwise equal to {twin.id}",
            not mismatches,
            "; ".join(f"{one.site}: {one.message}" for one in mismatches[:5]),
        )
        result = replace(result, relations=(*result.relations, relation))
        if relation.holds or not result.verdict.passes:
            return result
        return replace(
            result,
            verdict=Verdict.WRONG,
            reason=f"differs from {twin.id}, which on a CPU must be bitwise equal: {relation.detail}",
            attribution="pipeline",
        )


def merged(plain: Truth, forced: Truth, runs: Collection[str]) -> Truth:
    """The plain reference with some of its runs taken from a forced one."""
    members = {
        name: {site: value for site, value in values.items() if Site.parse(site).run not in runs}
        | forced.members.get(name, {})
        for name, values in plain.members.items()
    }
    return Truth(members, plain.prompt_ids)


def one_stage(backend: Backend, backends: Sequence[Backend]) -> Backend | None:
    """The column that differs from this one in the number of stages only, which is one."""
    if backend.pipeline == 1:
        return None
    return next(
        (
            other
            for other in backends
            if other.pipeline == 1
            and (other.engine, other.tensor, other.options, other.environment)
            == (backend.engine, backend.tensor, backend.options, backend.environment)
        ),
        None,
    )


def _model_info(run: RunFolder, model: Model) -> ModelInfo:
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


def _groups(run: RunFolder) -> tuple[Group, ...]:
    found: list[Group] = []
    for model, backend in run.groups():
        group = run.group(model, backend)
        if group is None:
            raise ConformanceError(
                f"{model} on {backend} has no group.json", path=run.path, remedy="run --resume"
            )
        found.append(group)
    return tuple(found)

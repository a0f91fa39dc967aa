"""How far apart honest bf16 runs are: the thresholds the judge gates on.

Every member of the reference's ensemble is judged as if it were a backend, against the
others: a clean case of which the answer is known. The thresholds are split-conformal
quantiles of what those cases reach (Vovk, Gammerman and Shafer 2005, chapter 4), one for
each model, and of them the largest: a pooled quantile would let a single model have all the
false alarms that are accepted. Caps keep calibration from swallowing a fault: a model that
needs more is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.campaign import REFERENCE
from conformance.continuations import by_member
from conformance.errors import ConformanceError
from conformance.judge.cell import judge_cell
from conformance.records import Status, Thresholds, digest, record
from conformance.scenario import Scenario
from conformance.store import RunFolder, installed
from conformance.store.files import read_record, write_record

#: What the thresholds may reach at most (numerics: metrics).
CAP_MED = 1.5
CAP_MAX = 3.0
#: One false alarm in so many clean cases is accepted.
CASES_PER_ALARM = 300


@record()
class Calibration:
    """`calibration.json`: thresholds and where they come from.

    `reached` are the largest Q_med and Q_max of each model's clean cases; `beyond` are the
    models that reached more than the caps. `digest` is of the scores.
    """

    k_med: float
    k_max: float
    cases: int
    alarms: int
    date: str
    versions: Mapping[str, str]
    reached: Mapping[str, tuple[float, float]]
    beyond: tuple[str, ...]
    digest: str

    def thresholds(self) -> Thresholds:
        """For the judge. A file that says more than the caps is held to them."""
        return Thresholds(
            k_med=min(self.k_med, CAP_MED),
            k_max=min(self.k_max, CAP_MAX),
            source=f"calibrated {self.date} on {self.cases} clean cases, digest {self.digest}",
        )


@dataclass(frozen=True)
class Score:
    """What one clean case reached: its largest Q_med over tokens and its largest Q_max."""

    model: str
    case: str
    member: str
    q_med: float
    q_max: float


def conformal(scores: Sequence[float], alarm: float) -> float:
    """The ⌈(n+1)(1−alarm)⌉-th smallest of n scores; the largest where n is too small."""
    ordered = sorted(scores)
    rank = math.ceil((len(ordered) + 1) * (1 - alarm))
    return ordered[min(rank, len(ordered)) - 1]


def calibrate(scores: Sequence[Score], date: str) -> Calibration:
    """Thresholds from clean cases. Raises ConformanceError when there are too few."""
    if len(scores) < CASES_PER_ALARM:
        raise ConformanceError(
            f"{len(scores)} clean cases are too few to calibrate, {CASES_PER_ALARM} are needed",
            remedy="calibrate on a run of more models: conformance run",
        )
    alarm = 1 / CASES_PER_ALARM
    by_model = {
        model: [score for score in scores if score.model == model]
        for model in dict.fromkeys(score.model for score in scores)
    }
    k_med = max(conformal([one.q_med for one in own], alarm) for own in by_model.values())
    k_max = max(conformal([one.q_max for one in own], alarm) for own in by_model.values())
    k_med, k_max = min(k_med, CAP_MED), min(k_max, CAP_MAX)
    # Never below the starting values: a lucky set of models must not make it hysterical.
    start = Thresholds()
    k_med, k_max = max(k_med, start.k_med), max(k_max, start.k_max)
    reached = {
        model: (max(one.q_med for one in own), max(one.q_max for one in own))
        for model, own in by_model.items()
    }
    return Calibration(
        k_med=math.ceil(k_med * 1000) / 1000,
        k_max=math.ceil(k_max * 1000) / 1000,
        cases=len(scores),
        alarms=sum(score.q_med > k_med or score.q_max > k_max for score in scores),
        date=date,
        versions=installed(),
        reached={model: (round(a, 3), round(b, 3)) for model, (a, b) in reached.items()},
        beyond=tuple(model for model, (a, b) in reached.items() if a > CAP_MED or b > CAP_MAX),
        digest=digest([[s.model, s.case, s.member, s.q_med, s.q_max] for s in scores]),
    )


def clean_scores(
    run: RunFolder,
    scenarios: Mapping[str, Scenario],
    on_case: Callable[[str, str], None],
) -> Iterator[Score]:
    """Every ensemble member of every reference case of a stored run, held out in turn."""
    for model in run.plan().models:
        folder = run.group_folder(model.id, REFERENCE.id)
        group = folder.group()
        layers = int(group.identity.get("layers", 0)) if group else 0
        for scenario in scenarios.values():
            for case in scenario.expand(layers) if layers else ():
                outcome = folder.outcome(case.key)
                if outcome is None or outcome.status is not Status.OK:
                    continue
                on_case(model.id, case.key)
                members = by_member(folder.observations(case.key))
                for held_out in sorted(members.keys() - {"truth", "aux"}):
                    rest = {name: values for name, values in members.items() if name != held_out}
                    judged = judge_cell(
                        members[held_out],
                        rest,
                        twin=scenario.twin(case),
                        equal=(),
                        prompt_ids=outcome.prompt_ids,
                        truth_ids=outcome.prompt_ids,
                        thresholds=Thresholds(),
                    ).observations
                    rows = [one for one in judged if one.q_max is not None]
                    yield Score(
                        model.id,
                        case.key,
                        held_out,
                        # A single row has no median: it is judged as the maximum is.
                        _largest(one.q_med for one in rows if len(one.ratios) > 1),
                        _largest(one.q_max for one in rows),
                    )


def _largest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def read(path: Path) -> Thresholds:
    """The calibrated thresholds of this file, the starting values when there is none."""
    found = read_record(Calibration, path)
    return found.thresholds() if found else Thresholds()


def write(path: Path, calibration: Calibration) -> None:
    write_record(path, calibration)

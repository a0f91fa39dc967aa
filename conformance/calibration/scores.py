"""Honest runs judged as if they were backends: clean cases of which the answer is known.

Every member of a reference's ensemble is held out in turn, and measured by a floor that the
others give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from conformance.errors import ConformanceError
from conformance.generated_tokens import OTHER_SIDE, by_member
from conformance.jobs import REFERENCE
from conformance.judge.measures import metrics
from conformance.judge.measures.floor import Distance
from conformance.judge.reference import Reference, distances, read_reference
from conformance.records import Case, Site, Status, Thresholds
from conformance.scenario import Scenario
from conformance.store import GroupFolder, RunFolder


@dataclass(frozen=True)
class CleanCase:
    """One case whose reference is stored in `folder`. `name` is unique within its model."""

    model: str
    name: str
    folder: GroupFolder
    case: Case
    twin: bool


@dataclass(frozen=True)
class Score:
    """What one honest run reached on one clean case: the largest Q_med and Q_max of its
    observations, the latter at `site`. `bounded`: all that is judged by a mere bound is
    within it.
    """

    model: str
    case: str
    member: str
    q_med: float
    q_max: float
    site: str = ""
    bounded: bool = True


def held_out(cases: Iterable[CleanCase], on_case: Callable[[CleanCase], None]) -> Iterator[Score]:
    """Every honest run of every case, held out in turn; but none that takes the other side of
    near-ties on purpose. Those widen the floor where an honest run may fall on either side, and
    how often one does is not theirs to say: no engine takes all of them so.

    Raises ConformanceError when a reference is not there or cannot be used.
    """
    # Thousands of small operations: several threads cost five times what one does.
    torch.set_num_threads(1)
    for clean in cases:
        on_case(clean)
        yield from _scores(clean, _members(clean))


def _members(clean: CleanCase) -> dict[str, dict[Site, torch.Tensor]]:
    outcome = clean.folder.outcome(clean.case.key)
    if outcome is None or outcome.status is not Status.OK:
        words = outcome.reason if outcome else "it did not run"
        raise ConformanceError(
            f"the reference of {clean.model}, {clean.name} failed: {words}",
            path=clean.folder.log,
            remedy="see that log, or leave the model out with -m",
        )
    members = by_member(clean.folder.observations(clean.case.key))
    flaw = read_reference(members, twin=clean.twin)
    if isinstance(flaw, str):
        raise ConformanceError(f"the reference of {clean.model} cannot be used: {flaw}")
    return {
        name: {Site.parse(site): value for site, value in values.items()}
        for name, values in members.items()
    }


def _scores(
    clean: CleanCase, members: Mapping[str, Mapping[Site, torch.Tensor]]
) -> Iterator[Score]:
    truth = members["truth"]
    sites = [site for site, value in truth.items() if value.is_floating_point()]
    honest = sorted(members.keys() - {"truth", "aux"})
    for name in honest:
        if name.endswith(OTHER_SIDE):
            continue
        rest = Reference(
            truth,
            {
                site: tuple(members[other][site] for other in honest if other != name)
                for site in sites
            },
        )
        rest.prepare(sites)
        rows = {site: metrics.rows(members[name][site]) for site in sites}
        found = dict(distances(rest, rows, Thresholds()))
        yield _score(clean, name, found)


def _score(clean: CleanCase, member: str, found: Mapping[Site, Distance]) -> Score:
    worst = max(found, key=lambda site: found[site].q_max)
    return Score(
        clean.model,
        clean.name,
        member,
        # A single row has no median: it is judged as the maximum is.
        max((one.q_med for one in found.values() if len(one.ratios) > 1), default=0.0),
        found[worst].q_max,
        str(worst),
        all(one.bounded for one in found.values()),
    )


def stored(run: RunFolder, scenarios: Mapping[str, Scenario]) -> Iterator[CleanCase]:
    """The clean cases of a run that is stored already: those of its reference."""
    for model in run.plan().models:
        folder = run.group_folder(model.id, REFERENCE.id)
        group = folder.group()
        layers = int(group.identity.get("layers", 0)) if group else 0
        for scenario in scenarios.values():
            for case in scenario.expand(layers) if layers else ():
                outcome = folder.outcome(case.key)
                if outcome is not None and outcome.status is Status.OK:
                    yield CleanCase(model.id, case.key, folder, case, scenario.twin(case))

"""The reference along a candidate's experts, where a router's tie leaves the choice to rounding.

What a candidate chose is not observed. So the reference decides ties the other way, one at a time
and then several, and keeps the decisions with which the first row that is off agrees with the
candidate's. Each such run is a correct computation; a row that none explains is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations, count

import torch
from torch import Tensor

from conformance.engines.reference.expert_choice import Tie
from conformance.engines.reference.model import ReferenceModel
from conformance.spec.along_candidate import OffRow, first_off, layer_of
from conformance.spec.records import Site

#: The most runs of a case. A prompt has a few ties; a row that is wrong has all of them tried.
MOST_RUNS = 100
#: A tie that is decided the other way, with the number of its run in the case.
Decision = tuple[int, Tie]
#: Such ties by their run.
Decisions = Mapping[int, Collection[Tie]]
#: The model that ran a case, and the observations by site.
Found = tuple[ReferenceModel, dict[str, Tensor]]
Run = Callable[[Decisions], Found]


class TooManyTies(Exception):
    """The ties of a case were not all tried."""


def along_experts(observed: Mapping[str, Tensor], run: Run, allowed: float) -> Found:
    """Return the reference's run of a case that agrees best with what was observed.

    `allowed` is the relative distance of two float32 computations. Raises TooManyTies after
    `MOST_RUNS` runs.
    """
    runs = count()

    def decided(taken: Collection[Decision]) -> Found:
        if next(runs) == MOST_RUNS:
            raise TooManyTies(f"{MOST_RUNS} decisions of tied routers do not explain a row")
        by_run: dict[int, list[Tie]] = {}
        for number, tie in taken:
            by_run.setdefault(number, []).append(tie)
        return run(by_run)

    taken: frozenset[Decision] = frozenset()
    found = decided(taken)
    while first := first_off(observed, found[1], allowed):
        for more, other in _others(found, first, taken, decided):
            after = first_off(observed, other[1], allowed)
            # All rows up to this one agree. A row that is merely closer may be so by chance.
            if after is None or after.order > first.order:
                taken, found = taken | more, other
                break
        else:
            break
    return found


def _others(
    found: Found,
    first: OffRow,
    taken: Collection[Decision],
    decided: Callable[[Collection[Decision]], Found],
) -> Iterator[tuple[frozenset[Decision], Found]]:
    """Yield the runs with one more tie decided the other way, then with several of those that
    change the row at all.
    """
    changing = []
    for one in _before(found[0], first.site):
        if one not in taken:
            other = decided({*taken, one})
            yield frozenset([one]), other
            if not torch.equal(first.of(found[1]), first.of(other[1])):
                changing.append(one)
    for size in range(2, len(changing) + 1):
        for several in map(frozenset, combinations(changing, size)):
            yield several, decided({*taken, *several})


def _before(model: ReferenceModel, site: Site) -> Iterator[Decision]:
    """Yield the ties that can change an observation, each with its run's number."""
    for number, run in enumerate(model.runs):
        for step, ties in enumerate(run.ties[: site.step + 1]):
            for layer, tokens in ties.items():
                if step < site.step or layer <= layer_of(site):
                    for token in tokens.nonzero().flatten().tolist():
                        yield number, Tie(step, layer, int(token))

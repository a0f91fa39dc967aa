"""Run trials until there is an answer. Each trial is saved before the next begins."""

from __future__ import annotations

from collections.abc import Callable

from conformance.bisect.history.candidates import Candidate
from conformance.bisect.next_step import BisectionConclusion, Next, class_of, following
from conformance.bisect.search import Class
from conformance.bisect.state import BisectFolder, CandidateTrial

#: Tries a candidate; the second argument says whether it was tried before.
Trier = Callable[[Candidate, bool], CandidateTrial]


def _silent(*_: object) -> None:
    pass


def carry_on(
    folder: BisectFolder,
    trier: Trier,
    *,
    on_next: Callable[[Next], None] = _silent,
    on_attempt: Callable[[Next, CandidateTrial, Class], None] = _silent,
) -> BisectionConclusion:
    """Continue from what the folder holds. An exception in `trier` ends the loop; nothing is lost.

    Raises ConformanceError if another process uses the folder.
    """
    with folder.alone():
        state = folder.read()
        while isinstance(step := following(state), Next):
            on_next(step)
            attempt = trier(step.candidate, step.again)
            state = state.with_attempt(attempt)
            folder.write(state)
            on_attempt(step, attempt, class_of(attempt, state))
        return step

"""From trial to trial until there is an answer; each trial is kept before the next begins."""

from __future__ import annotations

from collections.abc import Callable

from conformance.bisect.history.candidates import Candidate
from conformance.bisect.next_step import Conclusion, Next, class_of, following
from conformance.bisect.search import Class
from conformance.bisect.state import Attempt, BisectFolder

#: Tries a candidate; the second argument says that it was tried before.
Trier = Callable[[Candidate, bool], Attempt]


def _silent(*_: object) -> None:
    pass


def carry_on(
    folder: BisectFolder,
    trier: Trier,
    *,
    on_next: Callable[[Next], None] = _silent,
    on_attempt: Callable[[Next, Attempt, Class], None] = _silent,
) -> Conclusion:
    """Go on from what the folder holds. Whatever `trier` raises ends it; nothing is lost.

    Raises ConformanceError when another process is at it.
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

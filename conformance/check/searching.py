"""The search of a check: which files need one, how long it may take, and where its results are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from conformance.builtin.user_trace import USER_TRACE
from conformance.check.answer import answer
from conformance.check.checked import AGREES, Answer, Answered
from conformance.check.gather import TRUTH, Asked, truth_of
from conformance.check.search.driver import LEAST, Place, search_all
from conformance.check.search.edits import Found
from conformance.check.search.session import Steps
from conformance.check.search.trial import Reference
from conformance.check.source import UserFile
from conformance.records import Status, Thresholds, record
from conformance.scenario import PAIR
from conformance.store import RunFolder
from conformance.store.files import read_record, write_record

#: Where the results of a search are kept, beside the plan.
EDITS = "edits.json"


@record()
class Edits:
    """What the search of a check found."""

    found: tuple[Found, ...] = ()


@dataclass
class Searching:
    """The search of one check. `tell` hears what is looked for."""

    asked: Asked
    run: RunFolder
    tell: Callable[[str], None] = lambda _: None
    begun: float = field(default_factory=time.monotonic)
    gathered: float = 0.0
    found: list[Found] = field(default_factory=list)
    answers: dict[tuple[str, str], Answered] = field(default_factory=dict)

    def steps(self) -> Steps:
        """Return the search, to be run by the engines of the check."""
        place = Place(self.run, self.asked.model.id, TRUTH.id, self.asked.prompts or PAIR)
        return search_all(place, self._wanted, self._seconds, self._keep)

    def _seconds(self) -> float:
        if self.asked.search is not None:
            return self.asked.search
        if not self.gathered:
            self.gathered = time.monotonic() - self.begun
        return max(LEAST, self.gathered / len(self.asked.files))

    def _keep(self, found: Found) -> None:
        self.found.append(found)
        write_record(self.run.path / EDITS, Edits(tuple(self.found)))

    def _wanted(self) -> Iterator[tuple[UserFile, str, Reference]]:
        """Yield the files that differ, with their engine: none that agrees on another engine."""
        model = self.asked.model.id
        for file in self.asked.files:
            outcome = truth_of(self.run, model, file.name)
            if outcome is None or outcome.status is not Status.OK:
                continue
            given = {
                backend.id: answer(self.asked, self.run, file, backend)
                for backend in self.asked.engines
            }
            self.answers |= {(file.name, name): one for name, one in given.items()}
            if any(one.checked.answer in AGREES for one in given.values()):
                continue
            seen = self.run.observations(model, TRUTH.id, f"{USER_TRACE.name}.{file.name}")
            for backend, one in given.items():
                if one.checked.answer in {Answer.DIFFERS, Answer.FAILS} or file.lacks_a_port:
                    self.tell(f"looking for an edit: {file.name} on {backend}")
                    yield file, backend, Reference(seen, Thresholds())


def found_in(run: RunFolder) -> tuple[Found, ...]:
    """Return what the search of a stored check found."""
    kept = read_record(Edits, run.path / EDITS)
    return kept.found if kept else ()

"""The search of a check: which files need one, how long it may take, and where its results are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache

from conformance.check.answer import answer
from conformance.check.checked import AGREES, Answer, Answered
from conformance.check.gather import TRUTH, Asked
from conformance.check.search.driver import LEAST, search_all
from conformance.check.search.edits import Found
from conformance.check.search.place import Place
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


def search(
    asked: Asked,
    run: RunFolder,
    given: dict[tuple[str, str], Answered],
    tell: Callable[[str], None],
) -> Steps:
    """Return the search of a check that begins now, to be run by its engines. `given` gets the
    answers that are worked out for it, `tell` hears what is looked for.
    """
    begun = time.monotonic()
    kept: list[Found] = []

    @cache
    def seconds() -> float:
        gathering = time.monotonic() - begun
        return max(LEAST, gathering / len(asked.files)) if asked.search is None else asked.search

    def keep(found: Found) -> None:
        kept.append(found)
        write_record(run.path / EDITS, Edits(tuple(kept)))

    def wanted() -> Iterator[tuple[UserFile, str, Reference]]:
        """Yield the files that differ, with their engine: none that agrees on another engine."""
        for file in asked.files:
            outcome = run.outcome(model, TRUTH.id, file.key)
            if outcome is None or outcome.status is not Status.OK:
                continue
            answers = {one.id: answer(asked, run, file, one) for one in asked.engines}
            given.update({(file.name, name): one for name, one in answers.items()})
            if any(one.checked.answer in AGREES for one in answers.values()):
                continue
            seen = run.observations(model, TRUTH.id, file.key)
            for backend, one in answers.items():
                if one.checked.answer in {Answer.DIFFERS, Answer.FAILS} or file.lacks_a_port:
                    tell(f"looking for an edit: {file.name} on {backend}")
                    yield file, backend, Reference(seen, Thresholds())

    model = asked.model.id
    place = Place(run, model, TRUTH.id, asked.prompts or PAIR)
    return search_all(place, wanted, seconds, keep)


def found_in(run: RunFolder) -> tuple[Found, ...]:
    """Return what the search of a stored check found."""
    kept = read_record(Edits, run.path / EDITS)
    return kept.found if kept else ()

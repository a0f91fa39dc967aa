"""Search for edits: which files need a search, its time limit, and where its results are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from conformance.check.answer import answer
from conformance.check.checked import AGREES, Answered, CheckAnswer
from conformance.check.gather import Asked
from conformance.check.search.driver import Search
from conformance.check.search.edits import Found
from conformance.check.search.engine_alone import ask_engine
from conformance.check.search.place import Place
from conformance.check.search.trial import FileReference
from conformance.planning.jobs import REFERENCE
from conformance.processes.sessions import seconds_running
from conformance.records import Status, record
from conformance.runner.session import Steps
from conformance.scenario import PAIR
from conformance.store import RunFolder
from conformance.store.files import read_record, write_record

#: The file with the results of a search, next to the plan.
EDITS = "edits.json"

#: The default time limit for a file, in seconds: at least LEAST, and while too few versions have
#: run at most _MOST.
LEAST, _MOST = 10.0, 60.0


@record()
class Edits:
    """The results of a check's search."""

    found: tuple[Found, ...] = ()


def search(
    asked: Asked,
    run: RunFolder,
    given: dict[tuple[str, str], Answered],
    tell: Callable[[str], None],
) -> Steps:
    """Search for an edit of each file on each engine on which it differs, unless the file agrees
    on another one. Adds the answers to `given`; `tell` receives progress messages.
    """
    place = Place(run, asked.model.id, REFERENCE.id, asked.prompts or PAIR)
    seconds = max(LEAST, seconds_running() / len(asked.files))
    found: list[Found] = []
    clean: dict[str, str] = {}
    for file in asked.files:
        if place.outcome(REFERENCE.id, file.key).status is not Status.OK:
            continue
        answers = {one.id: answer(asked, run, file, one) for one in asked.engines}
        given.update({(file.name, name): one for name, one in answers.items()})
        reference = FileReference(place.seen(REFERENCE.id, file.key))
        said = {name: one.checked.answer for name, one in answers.items()}
        wanted = set() if AGREES & {*said.values()} else {CheckAnswer.DIFFERS, CheckAnswer.FAILS}
        for backend in (name for name, one in said.items() if one in wanted or file.lacks_a_port):
            tell(f"looking for an edit: {file.name} on {backend}")
            if backend not in clean:
                clean[backend] = yield from ask_engine(place, backend)
            now, most = time.monotonic(), max(seconds, _MOST)
            limits = (seconds, most) if asked.search is None else (asked.search, asked.search)
            until, latest = (now + limit for limit in limits)
            agree = {one.text: one.words for one in found if one.file == file.name and one.verified}
            one = yield from Search(place, file, backend, reference, until, latest).steps([*agree])
            words = one.words or agree.get(one.text, ())
            found.append(replace(one, engine=clean[backend], words=words))
            write_record(run.path / EDITS, Edits(tuple(found)))


def found_in(run: RunFolder) -> tuple[Found, ...]:
    """Return the results of a stored check's search."""
    kept = read_record(Edits, run.path / EDITS)
    return kept.found if kept else ()

"""Search for edits: which files need a search, its time limit, and where its results are kept.

Before a search, a clean run shows whether the engine computes the same model as transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace

from conformance.commands.check.answer import answer
from conformance.commands.check.checked import AGREES, Answered, CheckAnswer
from conformance.commands.check.gather import CheckRequest
from conformance.commands.check.search.driver import Search
from conformance.commands.check.search.edits import Found
from conformance.commands.check.search.trial import FileReference, Place
from conformance.commands.check.values.compare import wrong
from conformance.judge.expectations import load_inherited
from conformance.judge.expectations.assess import find_applying
from conformance.judge.expectations.conditions import where_in
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.planning.machine import conditions
from conformance.runner.processes.sessions import seconds_running
from conformance.runner.scheduling import Further
from conformance.runner.scheduling.open_engines import Request, Steps
from conformance.runner.store import RunFolder, gathered_in
from conformance.runner.store.files import read_record, write_record
from conformance.spec.records import Cell, Precision, Status, record
from conformance.spec.scenario import PAIR

#: The file with the results of a search, next to the plan.
EDITS = "edits.json"

#: The default time limit for a file, in seconds: at least LEAST, and while too few versions have
#: run at most _MOST.
LEAST, _MOST = 10.0, 60.0


#: The file that runs on both sides.
CLEAN = '''\
"""Every layer's stream and the logits, with nothing written."""


def trace(lm, prompt):
    with lm.trace(prompt):
        streams = {}.save()
        for number, layer in enumerate(lm.layers):
            streams[number] = layer.stream
        logits = lm.logits.save()
    return {"stream": streams, "logits": logits}
'''

#: The time limit for a clean run, in seconds.
_SECONDS = 60.0


@record()
class Edits:
    """The results of a check's search."""

    found: tuple[Found, ...] = ()


def search(
    request: CheckRequest,
    run: RunFolder,
    known: dict[tuple[str, str], Answered],
    tell: Callable[[str], None],
) -> Steps:
    """Search for an edit of each file on each engine on which it differs, unless the file agrees
    on another one. Adds the answers to `known`; `tell` receives progress messages.
    """
    place = Place(run, request.model.id, request.prompts or PAIR)
    seconds = max(LEAST, seconds_running() / len(request.files))
    found: list[Found] = []
    clean: dict[str, str] = {}
    for file in request.files:
        if place.outcome(REFERENCE.id, file.key).status is not Status.OK:
            continue
        answers = {one.id: answer(request, run, file, one) for one in request.engines}
        known.update({(file.name, name): one for name, one in answers.items()})
        reference = FileReference(place.seen(REFERENCE.id, file.key))
        kinds = {name: one.checked.answer for name, one in answers.items()}
        wanted = set() if AGREES & {*kinds.values()} else {CheckAnswer.DIFFERS, CheckAnswer.FAILS}
        for backend in (name for name, one in kinds.items() if one in wanted or file.lacks_a_port):
            tell(f"looking for an edit: {file.name} on {backend}")
            if backend not in clean:
                clean[backend] = yield from compare_clean_runs(place, backend)
            now, limits = time.monotonic(), (seconds, max(seconds, _MOST))
            if request.search is not None:
                limits = (request.search, request.search)
            until, latest = (now + limit for limit in limits)
            agree = {one.text: one.words for one in found if one.file == file.name and one.verified}
            one = yield from Search(place, file, backend, reference, until, latest).steps([*agree])
            words = one.words or agree.get(one.text, ())
            found.append(replace(one, engine=clean[backend], words=words))
            write_record(run.path / EDITS, Edits(tuple(found)))


def read_search_results(run: RunFolder) -> tuple[Found, ...]:
    """Return the results of a stored check's search."""
    kept = read_record(Edits, run.path / EDITS)
    return kept.found if kept else ()


def compare_clean_runs(place: Place, backend: str) -> Generator[Request, None, str]:
    """Do a clean run on both sides; return in words where the engine differs, "" if nowhere."""
    case = replace(place, prompts=PAIR).case(CLEAN, "clean", "trace", place.tries / "clean.py")
    folder = gathered_in(backend, Precision.FLOAT32)
    further = Further((case,), _SECONDS)
    yield {place.job(REFERENCE.id): further, place.job(folder): further}
    outcome, seen = place.outcome(folder, case.key), place.seen(REFERENCE.id, case.key)
    if outcome.status is not Status.OK or not seen:
        return ""  # the error of the user's file says more about such an engine
    mine = place.seen(folder, case.key)
    tried = FileReference(seen).try_of(CLEAN, outcome, mine, Precision.FLOAT32)
    if tried.agrees or tried.compared is None:
        return ""
    off = wrong(tried.compared.judgement)
    sites = sorted(off, key=lambda site: (site.layer is None, site.layer))
    where = f"since layer {sites[0].layer}" if sites[0].layer is not None else "in its logits"
    words = f"{backend} computes another model than transformers {where}, with nothing written"
    reasons = _known(place, backend, folder)
    return f"{words}: {'; '.join(reasons)}" if reasons else words


def _known(place: Place, backend: str, folder: str) -> list[str]:
    """Return the reasons in known.yaml that apply to a clean run on this engine."""
    group = place.run.group(place.model, folder)
    if group is None:
        return []
    models = {one.id: one.architecture for one in place.run.plan().models}
    known = load_inherited()
    where = where_in(group, models.get(place.model) or place.model, {}, device=conditions())
    cell = Cell(place.model, backend, "clean", "")
    entries = (known.entries[index] for index in find_applying(known, cell, where))
    return list(dict.fromkeys(" ".join(one.reason.split()) for one in entries))

"""Check whether an engine computes the same model as transformers, without the user's file."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from conformance.check.search.place import Place
from conformance.check.search.trial import FileReference
from conformance.expectations import inherited
from conformance.expectations.assess import applying
from conformance.expectations.conditions import where_in
from conformance.planning.machine import conditions
from conformance.records import Cell, Precision, Site, Status
from conformance.runner import Further
from conformance.runner.session import Request
from conformance.scenario import PAIR
from conformance.store import gathered_in

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

#: The time limit for one run, in seconds.
_SECONDS = 60.0


def ask_engine(place: Place, backend: str) -> Generator[Request, None, str]:
    """Do a clean run on both sides; return in words where the engine differs, "" if nowhere."""
    case = replace(place, prompts=PAIR).case(CLEAN, "clean", "trace", place.tries / "clean.py")
    folder = gathered_in(backend, Precision.FLOAT32)
    further = Further((case,), _SECONDS)
    yield {place.job(place.reference): further, place.job(folder): further}
    outcome, seen = place.outcome(folder, case.key), place.seen(place.reference, case.key)
    if outcome.status is not Status.OK or not seen:
        return ""  # the error of the user's file says more about such an engine
    mine = place.seen(folder, case.key)
    tried = FileReference(seen).try_of(CLEAN, outcome, mine, Precision.FLOAT32)
    if tried.agrees or tried.compared is None:
        return ""
    off = [one for one in tried.compared.judgement.observations if not one.verdict.passes]
    sites = sorted((Site.parse(one.site) for one in off), key=lambda s: (s.layer is None, s.layer))
    where = f"since layer {sites[0].layer}" if sites[0].layer is not None else "in its logits"
    words = f"{backend} computes another model than transformers {where}, with nothing written"
    reasons = _known(place, backend, folder)
    return f"{words}: {'; '.join(reasons)}" if reasons else words


def _known(place: Place, backend: str, folder: str) -> list[str]:
    """Return the reasons in known.yaml that apply to a clean run on this engine."""
    group = place.group(folder)
    if group is None:
        return []
    models = {one.id: one.architecture for one in place.run.plan().models}
    known = inherited()
    where = where_in(group, models.get(place.model) or place.model, {}, device=conditions())
    cell = Cell(place.model, backend, "clean", "")
    entries = (known.entries[index] for index in applying(known, cell, where))
    return list(dict.fromkeys(" ".join(one.reason.split()) for one in entries))

"""Whether an engine computes the same model, asked without a line of the user's."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from conformance.builtin.user_trace import case_of
from conformance.check.search.session import Request
from conformance.check.search.trial import Reference
from conformance.expectations import inherited
from conformance.expectations.assess import applying
from conformance.expectations.conditions import where_in
from conformance.planning.machine import conditions
from conformance.records import Cell, Precision, Site, Status
from conformance.runner import Further
from conformance.scenario import PAIR
from conformance.store import RunFolder, gathered_in

#: What is run on both sides.
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

#: Seconds that a run of it may take.
_SECONDS = 60.0


def ask_engine(
    run: RunFolder,
    model: str,
    truth: str,
    backend: str,
    reference: Reference,
    numbers: Iterator[int],
) -> Generator[Request, None, str]:
    """Run both sides without any intervention; returns what the engine computes otherwise, "" where
    it is the same model.
    """
    number = next(numbers)
    path = run.path / "tries" / str(number) / "clean.py"
    path.parent.mkdir(parents=True)
    path.write_text(CLEAN, encoding="utf-8")
    case = case_of(f"clean~{number}", path, "trace", PAIR)
    folder = gathered_in(backend, Precision.FLOAT32)
    further = Further((case,), _SECONDS)
    yield {f"{model}:{truth}": further, f"{model}:{folder}": further}
    outcome = run.outcome(model, folder, case.key)
    seen = run.observations(model, truth, case.key)
    if outcome is None or outcome.status is not Status.OK or not seen:
        return ""  # the user's file says more of what such an engine cannot do
    mine = run.observations(model, folder, case.key)
    tried = Reference(seen, reference.thresholds).try_of(CLEAN, outcome, mine, Precision.FLOAT32)
    if tried.agrees or tried.compared is None:
        return ""
    off = [one for one in tried.compared.judgement.observations if not one.verdict.passes]
    sites = sorted((Site.parse(one.site) for one in off), key=lambda s: (s.layer is None, s.layer))
    first = sites[0]
    where = f"since layer {first.layer}" if first.layer is not None else "in its logits"
    words = f"{backend} computes another model than transformers {where}, with nothing written"
    reasons = _known(run, model, backend, folder)
    return f"{words}: {'; '.join(reasons)}" if reasons else words


def _known(run: RunFolder, model: str, backend: str, folder: str) -> list[str]:
    """Return the reasons that the entries of known.yaml give for a clean run on this engine."""
    group = run.group(model, folder)
    if group is None:
        return []
    architecture = next((m.architecture for m in run.plan().models if m.id == model), "")
    known = inherited()
    where = where_in(group, architecture or model, {}, device=conditions())
    cell = Cell(model, backend, "clean", "")
    entries = (known.entries[index] for index in applying(known, cell, where))
    return list(dict.fromkeys(" ".join(one.reason.split()) for one in entries))

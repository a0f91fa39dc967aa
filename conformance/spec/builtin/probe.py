"""The probe: a prompt that no scenario uses, from which the layout of the layers is determined."""

from __future__ import annotations

from typing import Any

from conformance.spec.records import Case
from conformance.spec.scenario import built_in

#: No scenario uses this prompt: the layout probe reads it.
PROBE = "Seven quiet rivers meet below the northern hills"

#: The key under which the reference reports how its attention stores query, key and value.
ARRANGED = "arranged"


def _probe_reference(model: Any, case: Case) -> Any:
    run = model.run(case.prompts[0])
    found = {"stream": run.stream, "logits": run.logits, ARRANGED: model.arranged}
    return [found | model.score_rules()]


#: The reference measures the probe first, because layouts need it.
PROBING = built_in(
    "probe",
    "Probe: the stream of a prompt that no scenario uses, to find layouts by.",
    __file__,
    reference=_probe_reference,
    prompts=(PROBE,),
)

#: The key of the probe's only case.
PROBED = PROBING.expand(0)[0].key

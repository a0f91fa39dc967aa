"""Edits: a registered block adds a vector to one layer's stream in every request.

It acts in two traces that say nothing of it, and no longer after it is cleared.
"""

from conformance import scenario

DOSE = 0.5


def read(lm, prompt):
    """A trace that changes nothing."""
    with lm.trace(prompt):
        streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
        streams = streams.save()
        logits = lm.logits.save()
    return {"stream": streams, "logits": logits}


@scenario(layers={"at": ("early", "late")}, twin=True, depends_on="engine")
def edits(lm, case):
    at = case.layers["at"]
    if case.active:
        with lm.edit():
            layer = lm.layers[at]
            layer.stream = layer.stream + DOSE * lm.direction(at)
    try:
        observed = [read(lm, prompt) for prompt in case.prompts]
    finally:
        lm.clear_edits()
    observed[0]["cleared"] = read(lm, case.prompts[0])["stream"]
    return observed


@edits.reference
def _(model, case):
    at = case.layers["at"]
    vector = DOSE * model.direction(at)
    added = {at: lambda stream, _: stream + vector} if case.active else {}
    runs = [model.run(prompt, edits=added) for prompt in case.prompts]
    observed = [{"stream": run.stream, "logits": run.logits} for run in runs]
    observed[0]["cleared"] = model.run(case.prompts[0]).stream
    return observed

"""Halve: half of the residual stream after one layer, for every token.

Read back at the layer, at every later one and in the logits.
"""

from conformance import scenario


def block(lm, case):
    """What each prompt's block does. In the clean run, which the write is compared with,
    the case is not active.
    """
    at = case.layers["at"]
    if case.active:
        lm.layers[at].stream = lm.layers[at].stream * 0.5
    after = range(at, len(lm.layers))
    return {"stream": {index: lm.layers[index].stream for index in after}, "logits": lm.logits}


@scenario(layers={"at": ("first", "middle")}, twin=True)
def halve(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@halve.reference
def _(model, case):
    at = case.layers["at"]
    edits = {at: lambda stream, earlier: stream * 0.5} if case.active else {}
    runs = [model.run(prompt, edits=edits) for prompt in case.prompts]
    return [{"stream": run.after(at), "logits": run.logits} for run in runs]

"""Skip: one layer is left out, so that the stream after it is the stream before it.

One prompt by itself, then two prompts of different length in one trace.
"""

from conformance import scenario


def block(lm, case):
    """What each prompt's block does."""
    at = case.layers["at"]
    before = lm.layers[at - 1].stream
    if case.active:
        lm.layers[at].skip()
    after = {index: lm.layers[index].stream for index in range(at, len(lm.layers))}
    return {"stream": after, "before": {at: before}, "logits": lm.logits}


@scenario(
    layers={"at": ("middle", "last")},
    options={"batch": ("alone", "pair")},
    twin=True,
    equal=[("before", "stream")],
)
def skip(lm, case):
    if case.options["batch"] == "alone":
        with lm.trace(case.prompts[0]):
            only = block(lm, case).save()
        return [only]

    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@skip.reference
def _(model, case):
    at = case.layers["at"]
    edits = {at: lambda _, earlier: earlier[at - 1]} if case.active else {}
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    runs = [model.run(prompt, edits=edits) for prompt in prompts]
    return [
        {"stream": run.after(at), "before": {at: run.stream[0][at - 1]}, "logits": run.logits}
        for run in runs
    ]

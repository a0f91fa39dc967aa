"""Repeat: the same trace five times in a row, beside traces of other prompts.

Nothing of one run may be seen in another: all five are the same to the last bit, also where
tokens known from an earlier request would not be computed again.
"""

from conformance import scenario

AGAIN = ("second", "third", "fourth", "fifth")


def once(lm, prompt):
    """One trace: the stream after every layer."""
    with lm.trace(prompt):
        streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
        streams = streams.save()
        logits = lm.logits.save()
    return streams, logits


@scenario(
    options={"prefixes": ("forgotten", "kept")},
    equal=[("stream", name) for name in AGAIN],
    settings=lambda case: {"prefix_cache": True} if case.options["prefixes"] == "kept" else {},
    tier=lambda case: "scheduling" if case.options["prefixes"] == "kept" else "",
    depends_on="engine",
)
def repeat(lm, case):
    first, logits = once(lm, case.prompts[0])
    observed = {"stream": first, "logits": logits}
    for name in AGAIN:
        with lm.trace(case.prompts[1]):
            late = lm.layers[-1]
            late.stream = late.stream * 0
        observed[name], _ = once(lm, case.prompts[0])
    return [observed]


@repeat.reference
def _(model, case):
    run = model.run(case.prompts[0])
    return [{"stream": run.stream, "logits": run.logits} | dict.fromkeys(AGAIN, run.stream)]

"""Batch: several prompts in one trace, each with its own rows and nobody else's.

Six of mixed lengths; the same prompt three times; a prompt beside a neighbour, then beside
another of equal length, which must leave its rows the same to the last bit; and two whose
blocks add to one list.
"""

from conformance import scenario

PROMPTS = (
    "The capital of France is",
    "A small boat drifted slowly past the old stone bridge while we were",
    "A small boat drifted past slowly the stone old bridge while we were",
    "One",
    "In the winter of that year the river froze",
    "Three plus four equals",
)


def block(lm):
    """What each prompt's block does."""
    return {"stream": {i: layer.stream for i, layer in enumerate(lm.layers)}, "logits": lm.logits}


def together(lm, prompts):
    """One trace of these prompts: what each one's block saved."""
    with lm.trace() as tracer:
        found = [None] * len(prompts)
        found = found.save()
        for index, prompt in enumerate(prompts):
            with tracer.invoke(prompt):
                found[index] = block(lm)
    return found


def appended(lm, prompts):
    """One trace in which every prompt's block adds to one list."""
    with lm.trace() as tracer:
        found = [].save()
        for prompt in prompts:
            with tracer.invoke(prompt):
                found.append(block(lm))
    return found


def members(case):
    """Which prompts make up the batch."""
    of = case.options["of"]
    return {
        "six": range(len(case.prompts)),
        "same": (0, 0, 0),
        "neighbours": (0, 1),
        "appended": (0, 1),
    }[of]


@scenario(
    prompts=PROMPTS,
    options={"of": ("six", "same", "neighbours", "appended")},
    equal=lambda case: [("stream", "beside_another")] if case.options["of"] == "neighbours" else [],
    depends_on="engine",
)
def batch(lm, case):
    prompts = [case.prompts[index] for index in members(case)]
    if case.options["of"] == "appended":
        return appended(lm, prompts)
    found = together(lm, prompts)
    if case.options["of"] == "neighbours":
        other = together(lm, [case.prompts[0], case.prompts[2]])
        found[0]["beside_another"] = other[0]["stream"]
    return found


@batch.reference
def _(model, case):
    runs = [model.run(case.prompts[index]) for index in members(case)]
    observed = [{"stream": run.stream, "logits": run.logits} for run in runs]
    if case.options["of"] == "neighbours":
        observed[0]["beside_another"] = runs[0].stream
    return observed

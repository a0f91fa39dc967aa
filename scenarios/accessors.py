"""Accessors: inputs and outputs of the layers, of their attention and MLP, the token
embeddings and the final norm.

What goes into a layer must be, bit for bit, what came out of the one before.
"""

from conformance import scenario

#: What is read → the part of the model it belongs to.
PARTS = {
    "embedding": "embedding",
    "input": "",
    "attention_input": "attention",
    "attention": "attention",
    "mlp_input": "mlp",
    "mlp": "mlp",
    "norm": "norm",
}


def of_layer(layer, what):
    """One layer's value of this name."""
    if what == "input":
        return layer.input
    part = layer.attention if what.startswith("attention") else layer.mlp
    return part.input if what.endswith("input") else part.output


def layers_with(lm, part):
    """The layers that have this part: all, but in models of several kinds of layer."""
    return [index for index, layer in enumerate(lm.layers) if not part or layer.has(part)]


def block(lm, what, layers):
    """What each prompt's block reads, by its name; what layers have by layer."""
    if what in {"embedding", "norm"}:
        return {what: getattr(lm, what).output}
    values, streams = {}, {}
    for index in layers:
        values[index] = of_layer(lm.layers[index], what)
        if what == "input":
            streams[index] = lm.layers[index].stream
    return {what: values, "stream": streams}


@scenario(
    options={"of": tuple(PARTS)},
    needs=lambda case: tuple(filter(None, [PARTS[case.options["of"]]])),
    equal=lambda case: [("stream", "input+1")] if case.options["of"] == "input" else [],
)
def accessors(lm, case):
    what = case.options["of"]
    layers = [] if what in {"embedding", "norm"} else layers_with(lm, PARTS[what])
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, what, layers).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, what, layers).save()
    return [first, second]


@accessors.reference
def _(model, case):
    what = case.options["of"]
    runs = [model.run(prompt, parts=(what,)) for prompt in case.prompts]
    observed = [{what: [step[what] for step in run.parts]} for run in runs]
    if what == "input":
        for run, seen in zip(runs, observed, strict=True):
            seen["stream"] = run.stream
    return observed

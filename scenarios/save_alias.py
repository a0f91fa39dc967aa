"""Save by reference: what a block saves without copying it must be what it read.

Each value is read once and saved twice, as a copy and as it is; both are the same to the last
bit, whatever the model has done with its buffers since.
"""

from conformance import scenario


def block(lm, part, layers):
    """What each prompt's block does: of every layer a copy, and the thing itself."""
    copied, kept = {}, {}
    for index in layers:
        layer = lm.layers[index]
        live = layer.attention.live if part == "attention" else layer.mlp.live
        copied[index] = live.clone()
        kept[index] = live
    return {part: copied, "kept": kept}


@scenario(
    options={"of": ("attention", "mlp")},
    needs=lambda case: (case.options["of"],),
    equal=lambda case: [(case.options["of"], "kept")],
    numerics=False,
)
def save_alias(lm, case):
    part = case.options["of"]
    layers = [index for index, layer in enumerate(lm.layers) if layer.has(part)]
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, part, layers).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, part, layers).save()
    return [first, second]


@save_alias.reference
def _(model, case):
    part = case.options["of"]
    runs = [model.run(prompt, parts=(part,)) for prompt in case.prompts]
    return [
        {part: [step[part] for step in run.parts], "kept": [step[part] for step in run.parts]}
        for run in runs
    ]

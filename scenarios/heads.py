"""Heads: what every attention head gives, read in all layers, of two prompts in one trace; one head
switched off; one head's last token put in from another prompt.
"""

from conformance import LM, Case, Reference, scenario


def middle(layers):
    """The layer that is changed: the middle one of those that have heads."""
    return layers[len(layers) // 2]


def changed(values, donor, how):
    """The heads of a prompt with the second one switched off, or patched from the donor's."""
    values = values.clone()
    if how == "off":
        values[:, 1] = 0
    else:
        values[-1, 1] = donor[-1, 1]
    return values


@scenario(
    options={"do": ("read", "off", "patch")},
    twin=lambda case: case.options["do"] != "read",
    needs=lambda _: ("heads",),
)
def heads(lm: LM, case: Case):
    how, (recipient, donor) = case.options["do"], case.prompts
    having = [index for index, layer in enumerate(lm.layers) if layer.has("heads")]
    at = middle(having)
    with lm.trace() as tracer:
        with tracer.invoke(recipient):
            own = {index: lm.layers[index].attention.heads for index in having}.save()
        with tracer.invoke(donor):
            donated = {index: lm.layers[index].attention.heads for index in having}.save()
    if how == "read":
        return [{"heads": own}, {"heads": donated}]
    with lm.trace(recipient):
        if case.active:
            values = lm.layers[at].attention.heads
            lm.layers[at].attention.heads = changed(values, donated[at], how)
        streams = {index: lm.layers[index].stream for index in range(at, len(lm.layers))}.save()
        logits = lm.logits.save()
    return [{"stream": streams, "logits": logits}]


@heads.reference
def _(model: Reference, case: Case):
    how, (recipient, _) = case.options["do"], case.prompts
    own, donated = (model.run(prompt, parts=("heads",)).parts for prompt in case.prompts)
    if how == "read":
        return [{"heads": [step["heads"] for step in steps]} for steps in (own, donated)]
    at = middle(model.having("heads"))

    def change(step, values):
        return changed(values, donated[0]["heads"][at], how)

    run = model.run(recipient, at={("heads", at): change} if case.active else {})
    return [{"stream": run.after(at), "logits": run.logits}]

"""Query, key and value of every attention head before rotary positions: read in all layers; every
second number of the first head's doubled.
"""

from conformance import LM, PAIR, Case, Reference, scenario

PARTS = ("query", "key", "value")


def middle(layers):
    """The layer that is changed: the middle one of those that have query, key and value."""
    return layers[len(layers) // 2]


def stretched(values):
    """Every second number of the first head doubled: a norm would undo a factor of all numbers."""
    values = values.clone()
    values[:, 0, ::2] *= 2
    return values


@scenario(
    prompts=PAIR[1:],
    options={"do": ("read", "key", "value")},
    twin=lambda case: case.options["do"] != "read",
    needs=lambda _: ("qkv",),
)
def qkv(lm: LM, case: Case):
    having = [index for index, layer in enumerate(lm.layers) if layer.has("qkv")]
    what, at = case.options["do"], middle(having)
    with lm.trace(case.prompts[0]):
        if what == "read":
            values = {name: {} for name in PARTS}.save()
            for index in having:
                parts = lm.layers[index].attention.qkv
                for name, part in zip(PARTS, parts, strict=True):
                    values[name][index] = part
        elif case.active:
            attention = lm.layers[at].attention
            setattr(attention, what, stretched(getattr(attention, what)))
        if what != "read":
            layers = range(at, len(lm.layers))
            values = {"stream": {index: lm.layers[index].stream for index in layers}}.save()
            logits = lm.logits.save()
    return [values if what == "read" else {**values, "logits": logits}]


@qkv.reference
def _(model: Reference, case: Case):
    what, at = case.options["do"], middle(model.having("qkv"))
    if what == "read":
        run = model.run(case.prompts[0], parts=PARTS)
        return [{name: [step[name] for step in run.parts] for name in PARTS}]
    visit = {(what, at): lambda _, values: stretched(values)}
    run = model.run(case.prompts[0], at=visit if case.active else {})
    return [{"stream": run.after(at), "logits": run.logits}]

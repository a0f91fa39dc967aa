"""A vector is added to the stream, one way right and the others wrong."""

from conformance import scenario

from ._parts import after, write

#: How much of the vector is added.
SHARES = {"correct": 1, "half": 0.5, "twice": 2, "first_prompt_only": 1, "dropped": 0}


def block(lm, case, first):
    layer = lm.layers[case.layers["at"]]
    kind = case.options["kind"]
    vector = 0.5 * lm.direction(case.layers["at"])
    if case.active and kind == "dropped":
        _ = layer.stream + vector
    elif case.active and (first or kind != "first_prompt_only"):
        layer.stream = layer.stream + SHARES[kind] * vector
    return {"stream": after(lm, case.layers["at"]), "logits": lm.logits}


@scenario(layers={"at": "middle"}, options={"kind": tuple(SHARES)}, twin=True)
def writes(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case, True).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case, False).save()
    return [first, second]


writes.reference(write)

"""A write as it should be: the control."""

from conformance import scenario

from ._parts import after, write


def block(lm, case, first):
    layer = lm.layers[case.layers["at"]]
    vector = 0.5 * lm.direction(case.layers["at"])
    if case.active:
        layer.stream = layer.stream + vector
    return {"stream": after(lm, case.layers["at"]), "logits": lm.logits}


@scenario(layers={"at": "middle"}, twin=True)
def correct_write(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case, True).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case, False).save()
    return [first, second]


correct_write.reference(write)

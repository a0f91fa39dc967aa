"""Every layer's stream is that of the layer before it."""

from conformance import scenario

from ._parts import read, streams


def off(values):
    return {index: values[max(index - 1, 0)] for index in values}


def block(lm):
    return {"stream": off(streams(lm)), "logits": lm.logits}


@scenario()
def layer_off(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm).save()
    return [first, second]


layer_off.reference(read)

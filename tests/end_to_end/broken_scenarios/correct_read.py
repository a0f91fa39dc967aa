"""A read as it should be: the control."""

from conformance import scenario

from ._parts import read, streams


def block(lm):
    return {"stream": streams(lm), "logits": lm.logits}


@scenario()
def correct_read(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm).save()
    return [first, second]


correct_read.reference(read)

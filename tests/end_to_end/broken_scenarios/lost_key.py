"""The logits were never saved."""

from conformance import scenario

from ._parts import read, streams


def block(lm):
    return {"stream": streams(lm)}


@scenario()
def lost_key(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm).save()
    return [first, second]


lost_key.reference(read)

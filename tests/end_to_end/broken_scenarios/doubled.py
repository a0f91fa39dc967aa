"""The streams are twice as large."""

from conformance import scenario

from ._parts import read, streams


def block(lm):
    return {"stream": {i: v * 2 for i, v in streams(lm).items()}, "logits": lm.logits}


@scenario()
def doubled(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm).save()
    return [first, second]


doubled.reference(read)

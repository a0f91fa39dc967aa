"""One value is not a number."""

from conformance import scenario

from ._parts import read, streams


def broken(values):
    values[1][0, 0] = float("nan")
    return values


def block(lm):
    return {"stream": broken(streams(lm)), "logits": lm.logits}


@scenario()
def not_a_number(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm).save()
    return [first, second]


not_a_number.reference(read)

"""A read as it should be, after `exits`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def exits_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


exits_after.reference(read)

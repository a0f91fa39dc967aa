"""A read as it should be, after `closes`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def closes_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


closes_after.reference(read)

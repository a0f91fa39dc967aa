"""A read as it should be, after `seeds`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def seeds_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


seeds_after.reference(read)

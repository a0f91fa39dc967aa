"""A read as it should be, after `patches`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def patches_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


patches_after.reference(read)

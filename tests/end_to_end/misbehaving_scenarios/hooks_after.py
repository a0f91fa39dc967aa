"""A read as it should be, after `hooks`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def hooks_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


hooks_after.reference(read)

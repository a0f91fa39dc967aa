"""A read as it should be, after `threads`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def threads_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


threads_after.reference(read)

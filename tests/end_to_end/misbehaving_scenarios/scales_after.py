"""A read as it should be, after `scales`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def scales_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


scales_after.reference(read)

"""A read as it should be, after `moves`."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def moves_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


moves_after.reference(read)

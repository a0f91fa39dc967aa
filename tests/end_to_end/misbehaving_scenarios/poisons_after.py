"""A read as it should be, after `poisons`, in the blocks that it had."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def poisons_after(lm, case):
    with lm.trace(case.prompts[0]):
        kept = observed(lm).save()
    return [kept]


poisons_after.reference(read)

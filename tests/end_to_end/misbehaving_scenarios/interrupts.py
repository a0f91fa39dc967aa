"""The block raises what Ctrl-C does."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def interrupts(lm, case):
    with lm.trace(case.prompts[0]):
        raise KeyboardInterrupt
        kept = observed(lm).save()
    return [kept]


interrupts.reference(read)

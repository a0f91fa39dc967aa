"""The block calls for the end of the program."""

import sys

from conformance import scenario

from ._parts import observed, read


@scenario()
def exits(lm, case):
    with lm.trace(case.prompts[0]):
        sys.exit(0)
        kept = observed(lm).save()
    return [kept]


exits.reference(read)

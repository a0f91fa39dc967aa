"""The block ends its process without a word."""

import os

from conformance import scenario

from ._parts import observed, read


@scenario()
def ends(lm, case):
    with lm.trace(case.prompts[0]):
        os._exit(7)
        kept = observed(lm).save()
    return [kept]


ends.reference(read)

"""The block changes where and with which variables its process runs."""

import os

from conformance import scenario

from ._parts import observed, read


@scenario()
def moves(lm, case):
    with lm.trace(case.prompts[0]):
        os.chdir("/")
        os.environ.clear()
        kept = observed(lm).save()
    return [kept]


moves.reference(read)

"""The block closes every descriptor of its process."""

import os

from conformance import scenario

from ._parts import observed, read


@scenario()
def closes(lm, case):
    with lm.trace(case.prompts[0]):
        os.closerange(0, 4096)
        kept = observed(lm).save()
    return [kept]


closes.reference(read)

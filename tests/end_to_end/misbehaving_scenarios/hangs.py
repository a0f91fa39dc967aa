"""The block waits for ever."""

import time

from conformance import scenario

from ._parts import observed, read


@scenario()
def hangs(lm, case):
    with lm.trace(case.prompts[0]):
        while True:
            time.sleep(0.1)
        kept = observed(lm).save()
    return [kept]


hangs.reference(read)

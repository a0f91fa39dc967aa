"""The block leaves a child behind."""

import os
import time

from conformance import scenario

from ._parts import observed, read


@scenario()
def forks(lm, case):
    with lm.trace(case.prompts[0]):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        kept = observed(lm).save()
    return [kept]


forks.reference(read)

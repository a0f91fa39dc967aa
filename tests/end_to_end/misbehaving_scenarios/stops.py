"""The block stops its own process."""

import os
import signal

from conformance import scenario

from ._parts import observed, read


@scenario()
def stops(lm, case):
    with lm.trace(case.prompts[0]):
        os.kill(os.getpid(), signal.SIGSTOP)
        kept = observed(lm).save()
    return [kept]


stops.reference(read)

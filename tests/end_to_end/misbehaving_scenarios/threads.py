"""The block starts threads that go on."""

import threading

from conformance import scenario

from ._parts import observed, read


@scenario()
def threads(lm, case):
    with lm.trace(case.prompts[0]):
        for _ in range(20):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        kept = observed(lm).save()
    return [kept]


threads.reference(read)

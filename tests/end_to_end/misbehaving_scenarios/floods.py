"""The block writes a gigabyte to the log."""

import sys

from conformance import scenario

from ._parts import observed, read


@scenario()
def floods(lm, case):
    with lm.trace(case.prompts[0]):
        for _ in range(1000):
            sys.stdout.write("x" * 999_999 + "\n")
        kept = observed(lm).save()
    return [kept]


floods.reference(read)

"""A read that always fails."""

from conformance import scenario

from ._parts import truth


@scenario()
def lasting(lm, case):
    raise ValueError("always")


lasting.reference(truth)

"""A read that always fails."""

from conformance import scenario

from ._parts import reference_values


@scenario()
def lasting(lm, case):
    raise ValueError("always")


lasting.reference(reference_values)

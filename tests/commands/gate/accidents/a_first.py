"""A read that leaves something behind in its worker."""

from conformance import scenario

from ._parts import read, reference_values, seen


@scenario()
def a_first(lm, case):
    seen.append(case.key)
    return read(lm, case)


a_first.reference(reference_values)

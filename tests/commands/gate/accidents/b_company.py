"""A read that fails only after another one in the same worker: a reason, no accident."""

from conformance import scenario

from ._parts import read, reference_values, seen


@scenario()
def b_company(lm, case):
    if seen:
        raise ValueError("something was left behind")
    return read(lm, case)


b_company.reference(reference_values)

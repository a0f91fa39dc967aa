"""A read that fails in the first worker that tries it, and never again."""

import os
from pathlib import Path

from conformance import scenario

from ._parts import read, reference_values


@scenario()
def once(lm, case):
    flag = Path(os.environ["CONFORMANCE_TEST_FLAG"])
    if not flag.exists():
        flag.touch()
        raise ValueError("an accident")
    return read(lm, case)


once.reference(reference_values)

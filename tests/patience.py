"""How long a test waits for what should come soon.

A limit in a test finds what never comes. On two cores that others use as well, "soon" has been
thirty times what it is alone, and a shorter limit only finds that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds.
PATIENCE = 150.0


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)

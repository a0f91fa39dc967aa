"""Which checks stay where no folder was named: each holds what every layer computed."""

from __future__ import annotations

import math
import time
from pathlib import Path

from conformance.store import cleaning

#: The newest so many stay whatever they take, and older ones while all take so many bytes at most.
KEPT = cleaning.Limits(days=math.inf, room=4 << 30, newest=20)

#: The same as it is told to whoever looks for a check that is gone.
RULE = (
    f"the newest {KEPT.newest} on this machine are kept, and older ones as long as all take no "
    f"more than {KEPT.room >> 30} GiB; one that was kept with --reports DIR is there for good: "
    "name DIR"
)


def sweep(checks: Path, limits: cleaning.Limits = KEPT) -> None:
    """Remove the oldest finished checks as far as these limits say."""
    for item in cleaning.superfluous(cleaning.runs(checks), limits, time.time()):
        cleaning.remove(item)

"""How much of the disk the checks take that are kept where no folder was named: each holds what
every layer computed.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

#: All that are kept may take so many bytes together …
ROOM = 4 << 30

#: … and the newest so many stay whatever they take.
STAY = 20

#: The two as they are told to whoever looks for one that is gone.
RULE = (
    f"the newest {STAY} on this machine are kept, and older ones as long as all take no more than "
    f"{ROOM >> 30} GiB; one that was kept with --reports DIR is there for good: name DIR"
)


def sweep(checks: Path, room: int = ROOM, stay: int = STAY) -> None:
    """Remove the oldest finished checks until all together take no more than `room` bytes, and
    none of the newest, `stay` of them. What is not finished is running, or can be gone on with.
    """
    finished = sorted(
        path
        for path in checks.iterdir()
        if not path.is_symlink() and (path / "results.json").is_file()
    )
    sizes = {path: taken(path) for path in finished}
    left = sum(sizes.values())
    for path in finished[: max(len(finished) - stay, 0)]:
        if left <= room:
            break
        shutil.rmtree(path, ignore_errors=True)
        left -= sizes[path]


def taken(folder: Path) -> int:
    """The bytes that a folder takes on the disk; what a link leads to is not counted."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another check removes it meanwhile
                size += Path(place, name).lstat().st_blocks * 512
    return size

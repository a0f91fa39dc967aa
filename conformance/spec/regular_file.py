"""Read a file that a user named, and refuse pipes and devices.

Reading a pipe without a writer would block forever, and a device has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bytes(path: Path, most: int = -1) -> bytes:
    """Return the first `most` bytes of a file, or all if negative. Raises OSError, as `open` does,
    if it cannot be read or is not a regular file.
    """
    # Open without blocking, then check the open file: the name may point to another file by then.
    with open(path, "rb", opener=_without_waiting) as file:
        return file.read(most)


def _without_waiting(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # Python itself reports that it is a folder
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is a pipe or a device, no regular file", path)

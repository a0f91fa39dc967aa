"""The bytes of a file that somebody named, where it is one.

A pipe that nobody writes to would be waited for, for ever, and a device has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bytes(path: Path, most: int = -1) -> bytes:
    """The first bytes of a file, all where `most` is negative. Raises OSError, as Python's own
    does, for what cannot be read, and for what is no regular file.
    """
    # Opened without waiting, and looked at when it is open: a name can change its file.
    with open(path, "rb", opener=_without_waiting) as file:
        return file.read(most)


def _without_waiting(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # Python says of a folder that it is one
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is a pipe or a device, no regular file", path)

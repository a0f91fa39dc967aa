"""Paths for programs that do not quote them.

torch's inductor gives the compiler paths without quotes, and vLLM lists libraries in LD_PRELOAD,
which is split at spaces. An interpreter, a cache or a temporary file below a folder whose path has
a space is reached by a link.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path

#: The links outlive a run, so they are not in its temporary folder.
_PARENT = Path("/tmp")  # noqa: S108 - a folder of our own is made there


def name_without_quotes(folder: Path) -> Path:
    """Return `folder`, or, if a shell would need quotes for it, a symbolic link to it that needs
    none. The link is the same in every run, since compiled code is kept by the paths it was
    compiled with. Raises PermissionError if another user could change the link.
    """
    if shlex.quote(str(folder)) == str(folder):
        return folder
    folder = folder.absolute()
    links = _PARENT / f"conformance-links-{os.getuid()}"
    links.mkdir(mode=0o700, exist_ok=True)
    found = links.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{links} is not a folder that only this user can change: remove it")
    link = links / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    with suppress(FileExistsError):
        link.symlink_to(folder)
    return link


def name_interpreter(python: Path) -> Path:
    """Return the path of an interpreter below a prefix that needs no quotes."""
    return name_without_quotes(python.parent.parent) / python.parent.name / python.name

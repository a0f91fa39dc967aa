"""Where another interpreter finds this package, and nothing else of ours."""

from __future__ import annotations

import secrets
from pathlib import Path

from conformance.checkpoints import cache_folder
from conformance.records import digest

_PACKAGE = Path(__file__).parent.parent


def importable(package: Path = _PACKAGE, cache: Path | None = None) -> Path:
    """The folder for PYTHONPATH: the source tree, or a folder with links to the installed package
    and its command.

    Beside an installed one lie all the packages of its interpreter, which must not be seen.
    """
    if package.parent.name not in {"site-packages", "dist-packages"}:
        return package.parent
    folder = (cache or cache_folder()) / "harness" / digest(str(package))
    for there in (package, package.with_name("conformance_command.py")):
        link = folder / there.name
        if there.exists() and not link.exists():
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f".{secrets.token_hex(4)}"
            part.symlink_to(there)
            part.replace(link)
    return folder

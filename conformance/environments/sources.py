"""Making this package, and nothing else of its environment, importable in another interpreter."""

from __future__ import annotations

import secrets
from pathlib import Path

from conformance.checkpoints import cache_folder
from conformance.records import digest

_PACKAGE = Path(__file__).parent.parent


def importable(package: Path = _PACKAGE, cache: Path | None = None) -> Path:
    """Return the folder for PYTHONPATH: the source tree, or a folder with links to the installed
    package and its command.

    The site-packages folder itself would also expose all other packages of this interpreter.
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

"""The project's own scenarios: those that git tracks. A file beside them that it does not track is
somebody's own, and no test looks at it.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from conformance.spec.scenario import Scenario

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "scenarios"


@cache
def files() -> tuple[Path, ...]:
    """Every tracked file of the folder; all of them where this is no checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", FOLDER.name],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split("\0")  # fmt: skip
    known = [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    return tuple(sorted(known or FOLDER.glob("*.py")))


def scenarios() -> dict[str, Scenario]:
    """They by name, as `conformance.spec.scenario.discover` gives those of a whole folder."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    names = [path.stem for path in files() if not path.stem.startswith("_")]
    return {name: getattr(importlib.import_module(f"scenarios.{name}"), name) for name in names}


def copied(place: Path) -> Path:
    """A folder of the same name with these files alone, for commands that run a whole folder."""
    folder = place / FOLDER.name
    folder.mkdir(exist_ok=True)
    for path in files():
        shutil.copy(path, folder)
    return folder

"""Locate the data files that a run needs: models.yaml, known.yaml, environments.yaml, the lock file
and the scenarios.

A checkout has them next to the package, where people edit them. A wheel holds copies
(`force-include` in pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent.parent

#: Name → (place in a checkout, place in a wheel). The scenarios' folder has another name in a
#: wheel: the name is also that of the package they are imported as, and users often call their own
#: folder `scenarios`.
_PLACES = {
    "models.yaml": ("models.yaml", "models.yaml"),
    "known.yaml": ("known.yaml", "known.yaml"),
    "environments.yaml": ("environments.yaml", "environments.yaml"),
    "cpu.txt": ("environments/cpu.txt", "cpu.txt"),
    "scenarios": ("scenarios", "built_in_scenarios"),
}


def path(name: str) -> Path:
    beside, inside = _PLACES[name]
    installed = _PACKAGE / "packaged"
    return installed / inside if installed.is_dir() else _PACKAGE.parent / beside

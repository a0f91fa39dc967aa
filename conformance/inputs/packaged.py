"""The files that a run needs and that are no Python of this package: models.yaml, known.yaml,
environments.yaml, the lock file and the scenarios.

In a checkout they lie beside the package, where people edit them; a wheel holds copies
(`force-include` in pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent

#: Name → (where a checkout has it, where a wheel has it). The scenarios' folder has a name of its
#: own in a wheel: it is also the name of the package that they are imported as, and a user's
#: folder is often called `scenarios`.
_PLACES = {
    "models.yaml": ("models.yaml", "models.yaml"),
    "known.yaml": ("known.yaml", "known.yaml"),
    "environments.yaml": ("environments.yaml", "environments.yaml"),
    "cpu.txt": ("environments/cpu.txt", "cpu.txt"),
    "scenarios": ("scenarios", "built_in_scenarios"),
}


def path(name: str, package: Path = _PACKAGE) -> Path:
    """Where this file or folder is."""
    beside, inside = _PLACES[name]
    installed = package / "packaged"
    return installed / inside if installed.is_dir() else package.parent / beside

"""Tiny packages made on the spot: wheels in a folder, and a source tree that builds itself."""

from __future__ import annotations

import zipfile
from pathlib import Path


def add_wheel(folder: Path, name: str, version: str, *, code="", needs=(), whole=True) -> Path:
    """A wheel with one module of the package's name. Not `whole`: it cannot be installed."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files = {
        f"{name}/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    if not whole:
        files[f"{info}/WHEEL"] = "Wheel-Version: 99.0\n"
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(place, text)
    return path


_BACKEND = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from wheelhouse import add_wheel

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    code = Path("tiny.py").read_text()
    return add_wheel(Path(wheel_directory), "tiny", "5.0", code=code).name
"""


def source_tree(folder: Path, code: str) -> Path:
    """A package `tiny` 5.0 as a checkout, whose build needs no other package."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tiny"\nversion = "5.0"\n'
    )
    (folder / "backend.py").write_text(_BACKEND.format(here=str(Path(__file__).parent)))
    (folder / "tiny.py").write_text(code)
    return folder

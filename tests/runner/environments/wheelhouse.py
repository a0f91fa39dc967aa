"""Tiny packages made on the spot: wheels in a folder, and a source tree that builds itself."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path


def add_wheel(
    folder: Path, name: str, version: str, *, code="", needs=(), python=">=3", whole=True
) -> Path:
    """A wheel with one module of the package's name, which asks for packages and a Python. Not
    `whole`: it cannot be installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files = {
        f"{name}/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"Requires-Python: {python}\n{requires}",
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


#: As setuptools does, this leaves an egg-info in the tree that it builds.
_BACKEND = """
import subprocess
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from wheelhouse import add_wheel

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    Path("{name}.egg-info").mkdir(exist_ok=True)
    Path("{name}.egg-info", "SOURCES.txt").write_text(str(Path.cwd()))
    code = Path("{name}.py").read_text()
    return add_wheel(Path(wheel_directory), "{name}", "{version}", code=code).name
"""


def source_tree(folder: Path, code: str, name: str = "tiny", version: str = "5.0") -> Path:
    """A package as a checkout, by default `tiny` 5.0, whose build needs no other package."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
    )
    backend = _BACKEND.format(here=str(Path(__file__).parent), name=name, version=version)
    (folder / "backend.py").write_text(backend)
    (folder / f"{name}.py").write_text(code)
    return folder


def commit(tree: Path, message: str = "x") -> str:
    """Commit all of a tree; the commit's name."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", message]):
        subprocess.run(["git", "-C", tree, *words], check=True)
    return subprocess.check_output(["git", "-C", tree, "rev-parse", "HEAD"], text=True).strip()

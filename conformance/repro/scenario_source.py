"""A scenario's file as plain functions: its trace, and its reference, without the decorator."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.repro.quoting import Imported, extent
from conformance.scenario import PAIR, Scenario

_KNOWN = {"scenario", "PAIR"}


@dataclass(frozen=True, slots=True)
class Asked:
    """The scenario's code; `trace` and `reference` are the names of its two functions."""

    imports: Mapping[str, Imported]
    text: str
    names: frozenset[str]
    trace: str
    reference: str


@dataclass
class _Reading:
    """What was read of a scenario's file and of the files beside it."""

    folder: Path
    imports: dict[str, Imported] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    read: set[Path] = field(default_factory=set)


def asked(scenario: Scenario) -> Asked:
    """Raises ConformanceError for a file that needs more of the harness than `scenario`."""
    reading = _Reading(scenario.path.parent)
    _read(reading, scenario.path, scenario.name)
    return Asked(
        imports=reading.imports,
        text="\n\n\n".join(reading.texts),
        names=frozenset(reading.names),
        trace=scenario.name,
        reference=f"{scenario.name}_reference",
    )


def _read(reading: _Reading, path: Path, name: str) -> None:
    if path in reading.read:
        return
    reading.read.add(path)
    text = path.read_text(encoding="utf-8")
    lines = tuple(text.splitlines())
    for index, node in enumerate(ast.parse(text).body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _import(reading, path, node)
        elif not (index == 0 and _is_text(node)):
            _statement(reading, lines, node, name)


def _import(reading: _Reading, path: Path, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        _whole(reading, path, node)
        return
    module = node.module or ""
    package = module.split(".")[0]
    if module == "conformance" and {one.name for one in node.names} <= _KNOWN:
        for one in node.names:
            if one.name == "PAIR":
                reading.texts.append(f"{one.asname or one.name} = {PAIR!r}")
                reading.names.add(one.asname or one.name)
    elif package == "conformance":
        raise _needs(path, node.lineno)
    elif node.level or package == reading.folder.name:
        _beside(reading, path, node)
    elif module != "__future__":
        for one in node.names:
            reading.imports[one.asname or one.name] = Imported(module, one.name)
            reading.names.add(one.asname or one.name)


def _whole(reading: _Reading, path: Path, node: ast.Import) -> None:
    if any(one.name.split(".")[0] == "conformance" for one in node.names):
        raise _needs(path, node.lineno)
    for one in node.names:
        name = one.asname or one.name.split(".")[0]
        reading.imports[name] = Imported(one.name if one.asname else name)
        reading.names.add(name)


def _beside(reading: _Reading, path: Path, node: ast.ImportFrom) -> None:
    """`from ._parts import read as r`: the file's own statements, and the other name."""
    stem = (node.module or "").split(".")[-1]
    other = reading.folder / f"{stem}.py"
    if node.level > 1 or not other.is_file():
        raise _needs(path, node.lineno)
    _read(reading, other, "")
    for one in node.names:
        if one.asname and one.asname != one.name:
            reading.texts.append(f"{one.asname} = {one.name}")
            reading.names.add(one.asname)


def _statement(reading: _Reading, lines: tuple[str, ...], node: ast.stmt, name: str) -> None:
    first, last = extent(lines, node)
    text = "\n".join(lines[first:last])
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        decorator = node.decorator_list[0]
        if _is_scenario(decorator):
            text = _undecorated(lines, node)
        elif _is_reference(decorator):
            title = f"{name}_reference"
            text = re.sub(r"def \w+\(", f"def {title}(", _undecorated(lines, node), count=1)
            reading.names.add(title)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if _is_reference(call.func) and len(call.args) == 1:
            text = f"{name}_reference = {ast.unparse(call.args[0])}"
            reading.names.add(f"{name}_reference")
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        reading.names.add(node.name)
    elif isinstance(node, ast.Assign):
        reading.names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    reading.texts.append(text)


def _undecorated(lines: tuple[str, ...], node: ast.FunctionDef) -> str:
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_scenario(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "scenario"


def _is_reference(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) and decorator.attr == "reference"


def _needs(path: Path, line: int) -> ConformanceError:
    return ConformanceError(
        "the scenario imports what a script of its own cannot hold",
        path=path,
        line=line,
        remedy="of the harness only `scenario` and `PAIR`, else files beside it and packages",
    )

"""Read the keys of a transformers model type's config class from its source.

Nothing is imported, because a manifest is read without an engine. Unreadable source gives None.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: The base classes of every config class.
_COMMON = ("PreTrainedConfig", "PretrainedConfig")


@cache
def config_keys(architecture: str) -> frozenset[str] | None:
    """Return the keys; None if transformers has no such class or its source says too little."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    own = sorted((root / "models" / architecture).glob("configuration_*.py"))
    needle = f'model_type = "{architecture}"'
    others = (
        path
        for path in sorted((root / "models").glob("*/configuration_*.py"))
        if path not in own and needle in path.read_text(encoding="utf-8", errors="replace")
    )
    for path in itertools.chain(own, others):
        for node in _classes(path):
            value = dict(_assigned(node)).get("model_type")
            if isinstance(value, ast.Constant) and value.value == architecture:
                found, common = _keys(path, node), _common(root)
                return None if found is None or common is None else found | common
    return None


@cache
def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    yield from (node for node in _parsed(path).body if isinstance(node, ast.ClassDef))


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value
        elif isinstance(statement, ast.Assign):
            names = (target.id for target in statement.targets if isinstance(target, ast.Name))
            yield from ((name, statement.value) for name in names)


def _keys(path: Path, node: ast.ClassDef) -> frozenset[str] | None:
    """Return the keys of a class and its bases; None if a base is not found."""
    found = set(_own_keys(node))
    for base in node.bases:
        name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if name in _COMMON or name.endswith("Mixin") or name in {"object", "ABC"}:
            continue
        inherited = _of_class(path, name)
        if inherited is None:
            return None
        found |= inherited
    return frozenset(found)


def _of_class(path: Path, name: str) -> frozenset[str] | None:
    for node in _classes(path):
        if node.name == name:
            return _keys(path, node)
    for statement in ast.walk(_parsed(path)):
        if not isinstance(statement, ast.ImportFrom) or not statement.level:
            continue
        if statement.module and any(alias.name == name for alias in statement.names):
            folder = path.parents[statement.level - 1]
            module = folder.joinpath(*statement.module.split("."))
            return _of_class(module.with_suffix(".py"), name)
    return None


def _own_keys(node: ast.ClassDef) -> Iterator[str]:
    """Yield the class's fields, the arguments and attributes in its body, and every quoted word:
    `kwargs.pop("rope_theta", …)` reads a key that no attribute is named after.
    """
    yield from (name for name, _ in _assigned(node))
    for each in ast.walk(node):
        if isinstance(each, ast.arg):
            yield each.arg
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and str(each.value).isidentifier():
            yield str(each.value)


@cache
def _common(root: Path) -> frozenset[str] | None:
    path = root / "configuration_utils.py"
    found: set[str] = set()
    for node in _classes(path):
        if node.name in _COMMON or node.name.endswith("Mixin"):
            found |= set(_own_keys(node))
    return frozenset(found) or None

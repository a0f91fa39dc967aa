"""Definitions of the harness as text, each with all that it needs: read, never imported.

So a script holds the very lines that made the observation, and the parent needs none of
the libraries that they use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeGuard

import conformance
from conformance.errors import ConformanceError, ExitCode

PACKAGE = "conformance"
#: What a definition is called besides, where a scenario has its name.
OTHER = "_of_harness"
_REMARK = re.compile(r"[ \t]+# (?:type: ignore|noqa)[^\n]*")


@dataclass(frozen=True, slots=True)
class Imported:
    """A name that a module took from elsewhere; `name` is "" where it is a module itself."""

    module: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Quoted:
    """What is imported of other packages, and definitions in the order they need each other.

    `owners` are the modules of what is defined; `types` are the harness's own that annotations
    name and that are not defined, because nothing looks them up.
    """

    imports: Mapping[str, Imported]
    text: str
    owners: Mapping[str, str]
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Module:
    """A module's source, its definitions by name, and where its other names come from."""

    name: str
    lines: tuple[str, ...]
    defined: Mapping[str, ast.stmt]
    imported: Mapping[str, Imported]


def quote(
    roots: Iterable[str],
    *,
    given: Collection[str] = (),
    without: Collection[str] = (),
    avoid: Collection[str] = (),
) -> Quoted:
    """The definitions named `module:name`, and what they need.

    `given` are names that the script defines itself; `without` are methods, `Class.method`,
    that are left out (see `unused`). Names in `avoid` are taken: such definitions get another
    name. Raises ConformanceError for what cannot be quoted.
    """
    taken = _Taken(frozenset(given), frozenset(without))
    for root in roots:
        module, _, name = root.partition(":")
        taken.take(module, name)
    clashes = frozenset(avoid) & {*taken.owners, *taken.imports, *taken.given}
    texts = [renamed(text, clashes) for text in (*taken.texts, *taken.namespaces())]
    imports = {f"{k}{OTHER}" if k in clashes else k: v for k, v in taken.imports.items()}
    types = frozenset(taken.types) - {*taken.owners, *imports, *given}
    return Quoted(imports, "\n\n\n".join(texts), taken.owners, types)


def unused(
    parts: Iterable[Collection[str]],
    lean: Collection[str],
    used: str,
    *,
    given: Collection[str] = (),
    among_themselves: bool = False,
) -> frozenset[str]:
    """The methods of the classes in `lean` that neither the text `used` nor what the parts'
    roots need calls. With `among_themselves`, properties count as looked up only there and in
    `used`: other classes have some of the same names.
    """
    texts = [quote(part, given=given).text for part in parts]
    methods: dict[str, list[tuple[str, str, bool]]] = {}
    live, elsewhere = used, ""
    for text in texts:
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name in lean:
                for part in _methods(node):
                    first, last = extent(tuple(lines), part)
                    body = "\n".join(lines[first:last])
                    lines[first:last] = [""] * (last - first)
                    entry = (f"{node.name}.{part.name}", body, "@property" in body)
                    methods.setdefault(part.name, []).append(entry)
                if among_themselves:
                    live += "\n".join(lines[slice(*extent(tuple(lines), node))])
        elsewhere += "\n".join(lines)
    live += "" if among_themselves else elsewhere
    while found := [n for n in methods if _is_used(n, methods[n], live, elsewhere)]:
        live += "".join(body for name in found for _, body, _ in methods.pop(name))
    return frozenset(title for entries in methods.values() for title, _, _ in entries)


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    parts = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    return [part for part in parts if not part.name.startswith("__")]


def _is_used(
    name: str, entries: Iterable[tuple[str, str, bool]], live: str, elsewhere: str = ""
) -> bool:
    """A property is looked up and not called, which tells `layer.norm` from `tensor.norm()`.
    `elsewhere` only what is called counts.
    """
    if all(is_property for *_, is_property in entries):
        return re.search(rf"\.{name}\b(?!\()", live) is not None
    return bool(re.search(rf"\.{name}\b", live) or re.search(rf"\.{name}\(", elsewhere))


@dataclass
class _Taken:
    given: frozenset[str]
    without: frozenset[str]
    owners: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    imports: dict[str, Imported] = field(default_factory=dict)
    modules: dict[str, dict[str, None]] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)

    def take(self, module_name: str, name: str) -> None:
        """A definition after all that it needs."""
        if name in self.given:
            return
        module = read(module_name)
        if name not in module.defined:
            self._elsewhere(module, name)
        elif self.owners.setdefault(name, module_name) != module_name:
            raise _cannot(f"{name} is defined in {module_name} and in {self.owners[name]}")
        elif name not in self.done:
            # Of `A, B = 1, 2` both.
            self.done |= {name, *definitions(ast.Module([module.defined[name]], []))}
            self.owners |= dict.fromkeys(self.done - {*self.owners}, module_name)
            self._define(module, name)

    def _define(self, module: Module, name: str) -> None:
        mine = frozenset(one for one in self.without if one.startswith(f"{name}."))
        text, looked_up, annotations, of_modules = _needs(module.name, name, mine)
        for used in looked_up:
            if used != name and (used in module.defined or used in module.imported):
                self.take(module.name, used)
        for named in annotations:
            self._annotate(module, named)
        for alias, attribute in of_modules:
            origin = module.imported.get(alias)
            if origin is not None and _ours(origin) and _is_module(origin):
                self.take(_full(origin), attribute)
                self.modules.setdefault(alias, {})[attribute] = None
        if re.search(rf"^\s+(?:from|import) {PACKAGE}\b", text, re.MULTILINE):
            raise _cannot(f"{module.name}.{name} imports the harness inside a function")
        self.texts.append(text)

    def _annotate(self, module: Module, name: str) -> None:
        origin = module.imported.get(name)
        if origin is not None and not _ours(origin):
            self._import(name, origin)
        elif origin is not None or name in module.defined:
            self.types.add(name)

    def _import(self, name: str, origin: Imported) -> None:
        if self.imports.setdefault(name, origin) != origin:
            raise _cannot(f"{name} is of {origin.module} and of {self.imports[name].module}")

    def namespaces(self) -> Iterator[str]:
        """What stands for a module of which the definitions use single names."""
        for alias, names_of_it in self.modules.items():
            parts = ", ".join(f"{name}={name}" for name in names_of_it)
            yield f"{alias} = SimpleNamespace({parts})"

    def _elsewhere(self, module: Module, name: str) -> None:
        origin = module.imported.get(name)
        if origin is None:
            raise _cannot(f"{module.name} has no {name}")
        if not _ours(origin):
            self._import(name, origin)
        elif not _is_module(origin):
            self.take(origin.module, origin.name)


@cache
def _needs(
    module_name: str, name: str, without: frozenset[str]
) -> tuple[str, list[str], list[str], list[tuple[str, str]]]:
    """A definition's text, and the names, annotations and attributes of names in it."""
    module = read(module_name)
    node = _lean(module.defined[name], without)
    text = source(module.lines, module.defined[name], without)
    return text, names(node), annotated(node), attributes(node)


def import_lines(imports: Mapping[str, Imported]) -> Iterator[str]:
    """`import` statements for names of other packages."""
    whole = {name: one for name, one in imports.items() if not one.name}
    for name, one in sorted(whole.items()):
        yield f"import {one.module}" + (f" as {name}" if name != one.module else "")
    modules: dict[str, list[str]] = {}
    for name, one in sorted(imports.items()):
        if one.name:
            said = one.name if name == one.name else f"{one.name} as {name}"
            modules.setdefault(one.module, []).append(said)
    for module, parts in sorted(modules.items()):
        yield f"from {module} import {', '.join(parts)}"


@cache
def read(name: str) -> Module:
    """A module of this package by its dotted name."""
    path = Path(conformance.__file__).parent.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    return Module(name, tuple(text.splitlines()), definitions(tree), imports(tree))


def definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    """What a module defines at its top level."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {n.id: node for t in node.targets for n in ast.walk(t) if _bound(n)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def imports(tree: ast.Module) -> dict[str, Imported]:
    """What a module imports at its top level, by the name it has there."""
    found: dict[str, Imported] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for one in node.names:
                name = one.asname or one.name.split(".")[0]
                found[name] = Imported(one.name if one.asname else name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                found[one.asname or one.name] = Imported(node.module, one.name)
    return found


def source(lines: tuple[str, ...], node: ast.stmt, without: Collection[str] = ()) -> str:
    """A definition's lines with the comments above it, less the methods in `without`."""
    first, last = extent(lines, node)
    gone: set[int] = set()
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and f"{node.name}.{part.name}" in without:
                start, end = extent(lines, part)
                gone |= set(range(start, end))
    kept = [line for index, line in enumerate(lines[first:last], first) if index not in gone]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept))
    return _REMARK.sub("", text).rstrip()


def extent(lines: tuple[str, ...], node: ast.stmt) -> tuple[int, int]:
    """Indices of a statement's lines, half open: decorators and comments above belong to it."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return first, node.end_lineno or node.lineno


def _lean(node: ast.stmt, without: Collection[str]) -> ast.stmt:
    if not isinstance(node, ast.ClassDef):
        return node
    body = [p for p in node.body if f"{node.name}.{getattr(p, 'name', '')}" not in without]
    return ast.ClassDef(**{**dict(ast.iter_fields(node)), "body": body})


def renamed(text: str, clashes: Collection[str]) -> str:
    """The definition with other names for what it defines or looks up of `clashes`.

    A name that is bound inside the definition, as an argument, a variable or a function within,
    is its own.
    """
    if not clashes:
        return text
    lines = [line.encode() for line in text.splitlines()]
    top = ast.parse(text).body[0]
    own = {arg.arg for arg in ast.walk(top) if isinstance(arg, ast.arg)}
    if isinstance(top, ast.FunctionDef | ast.ClassDef):
        own |= {node.id for node in ast.walk(top) if _bound(node)} | set(_within(top))
        if top.name in clashes:
            head = next(i for i, line in enumerate(lines) if re.match(rb"(def|class) ", line))
            lines[head] = lines[head].replace(top.name.encode(), f"{top.name}{OTHER}".encode(), 1)
    places = [
        (node.lineno - 1, node.col_offset, node.id)
        for node in ast.walk(top)
        if isinstance(node, ast.Name) and node.id in clashes and node.id not in own
    ]
    for row, column, name in sorted(places, reverse=True):
        end = column + len(name.encode())
        lines[row] = lines[row][:end] + OTHER.encode() + lines[row][end:]
    return b"\n".join(lines).decode()


def _bound(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _within(top: ast.AST) -> Iterator[str]:
    """The functions and classes defined inside of a definition; a method is no name there."""
    every = list(ast.walk(top))
    no_names = {id(child) for one in every if isinstance(one, ast.ClassDef) for child in one.body}
    no_names.add(id(top))
    for node in every:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and id(node) not in no_names:
            yield node.name


class _Used(ast.NodeVisitor):
    """Names and attributes of names that running the code looks up: no annotation is."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def visit_Name(self, node: ast.Name) -> None:
        self.names.append(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self.attributes.append((node.value.id, node.attr))
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)


def names(node: ast.AST) -> list[str]:
    """The names that running a definition looks up, in order."""
    used = _Used()
    used.visit(node)
    return list(dict.fromkeys(used.names))


def attributes(node: ast.AST) -> list[tuple[str, str]]:
    """Every `name.attribute` of a definition."""
    used = _Used()
    used.visit(node)
    return list(dict.fromkeys(used.attributes))


def annotated(node: ast.AST) -> list[str]:
    """The names in a definition's annotations."""
    found: list[ast.expr | None] = []
    for part in ast.walk(node):
        if isinstance(part, ast.arg | ast.AnnAssign):
            found.append(part.annotation)
        elif isinstance(part, ast.FunctionDef):
            found.append(part.returns)
    return list(dict.fromkeys(name for one in found if one is not None for name in names(one)))


def _ours(origin: Imported) -> bool:
    return origin.module.split(".")[0] == PACKAGE


def _full(origin: Imported) -> str:
    return f"{origin.module}.{origin.name}" if origin.name else origin.module


def _is_module(origin: Imported) -> bool:
    path = Path(conformance.__file__).parent.joinpath(*_full(origin).split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _cannot(words: str) -> ConformanceError:
    return ConformanceError(
        f"the script cannot be put together: {words}",
        remedy="this is the harness's own mistake: report it",
        code=ExitCode.HARNESS,
    )

"""Parse a user's file without running it: its functions, its values, and what it writes.

A file has either `trace(lm)`, which uses the adapter that is alike on every engine, or `hf(model)`
and `vllm(model)`, as users port them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.spec.builtin.user_trace import USER_TRACE
from conformance.spec.inputs import text_file
from conformance.spec.records import Site

#: The forms a file can have. transformers runs the first function.
BOTH, PORTED = ("trace",), ("hf", "vllm")

_SHAPE = """\
def trace(lm):
    with lm.trace("The capital of France is"):
        hidden = lm.layers[2].stream.save()
    return {"hidden": hidden}"""


#: How a script loads nnsight's models and begins a trace.
_LOADS = re.compile(r"\b(?:LanguageModel|TransformersModel|VLLM)\(")
_TRACES = re.compile(r"\.(?:trace|generate)\(")

#: The attributes through which nnsight exposes a module's values.
_VALUES = frozenset({"output", "input", "inputs", "stream", "live", "logits"})


@dataclass(frozen=True)
class UserFile:
    """A parsed file. `functions` are those that a check runs; `name` is unique in a check."""

    path: Path
    text: str
    functions: dict[str, ast.FunctionDef]
    name: str

    @property
    def key(self) -> str:
        return f"{USER_TRACE.name}.{self.name}"

    @property
    def ported(self) -> bool:
        return "hf" in self.functions

    @property
    def lacks_a_port(self) -> bool:
        return self.function_for("vllm") not in self.functions

    def function_for(self, side: str) -> str:
        """Return the name of the function for transformers ("hf") or vLLM ("vllm")."""
        return side if self.ported else "trace"

    def text_of(self, side: str) -> str:
        """Return the source of a side's function, "" if there is none."""
        function = self.functions.get(self.function_for(side))
        return (ast.get_source_segment(self.text, function) or "") if function else ""

    def order_of(self, site: Site) -> tuple[int, ...]:
        """Return a sort key: where the reference's function last assigns the value's parts."""
        parts = {
            name
            for node in self._nodes
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True)
            if isinstance(key, ast.Constant) and str(key.value) == site.name
            for name in _names(value)
        }
        assigns = (node for node in self._nodes if isinstance(node, ast.Assign))
        return (max((one.lineno for one in assigns if parts & _names(*one.targets)), default=0),)

    def first_write(self) -> int:
        """Return the first line of the reference's function that writes to a module, or 0."""
        stored = (
            node.lineno
            for node in self._nodes
            if isinstance(node, (ast.Attribute, ast.Subscript))
            and isinstance(node.ctx, ast.Store)
            and any(isinstance(n, ast.Attribute) and n.attr in _VALUES for n in ast.walk(node))
        )
        return min(stored, default=0)

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.functions[self.function_for("hf")]))


def _names(*nodes: ast.expr) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def read(path: Path) -> UserFile:
    """Parse a file. Raises ConformanceError with the necessary edit if it cannot be checked."""
    text = text_file.read(path)
    try:
        tree = ast.parse(text, filename=str(path))
        found = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name in BOTH + PORTED
        }
        mistake = next(_mistakes(text, tree, found), None)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise ConformanceError(
            f"is no Python: {error.msg}{line}", path=path, line=error.lineno
        ) from error
    except (ValueError, MemoryError, RecursionError) as error:
        words = str(error) or "it is nested too deeply"
        raise ConformanceError(f"is no Python: {words}", path=path) from error
    if mistake is not None:
        words, remedy, number = mistake
        raise ConformanceError(words, path=path, line=number, remedy=remedy)
    return UserFile(path.resolve(), text, found, _name(path))


def _name(path: Path) -> str:
    """Return the name of the file in a check, safe as a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", path.stem).strip("-.+") or "trace"


def read_all(paths: Sequence[Path]) -> tuple[UserFile, ...]:
    """Parse these files and give each a unique name; the folder's name separates equal names.

    Raises ConformanceError for a file that cannot be checked, or that is named twice.
    """
    alike = Counter(_name(path) for path in paths)
    found: dict[str, UserFile] = {}
    for file in map(read, paths):
        folder = f"{_name(file.path.parent)}-" if alike[file.name] > 1 else ""
        name = f"{folder}{file.name}"
        if name in found:
            raise ConformanceError(
                f"two files are {name.replace('-', '/', 1)}.py", remedy="check one after the other"
            )
        found[name] = replace(file, name=name)
    return tuple(found.values())


def _mistakes(
    text: str, tree: ast.Module, found: dict[str, ast.FunctionDef]
) -> Iterator[tuple[str, str, int | None]]:
    """Yield why these functions cannot be checked: the error, the fix, and the line."""
    if "trace" in found and len(found) > 1:
        other = next(name for name in found if name != "trace")
        remedy = "keep `trace(lm)` alone, or `hf(model)` and `vllm(model)`"
        yield f"has `trace` and `{other}`", remedy, None
    if list(found) == ["vllm"]:
        remedy = "add `hf(model)`, which returns the same names on transformers"
        yield "has `vllm(model)` and nothing to compare it with", remedy, None
    if not found:
        words, line = "has neither `trace(lm)` nor `hf(model)` and `vllm(model)`", None
        remedy, shown = "write for example:", _SHAPE
        if script := _as_function(text, tree):
            line, shown = script
            words = "traces while it is imported, and a check calls a function many times"
            remedy = "keep the imports, and put this function in the place of the rest:"
        yield words, f"{remedy}\n{textwrap.indent(shown, '      ')}", line
    for name, function in found.items():
        names = [argument.arg for argument in function.args.args]
        if not names or names[1:] not in ([], ["prompt"], ["prompts"]):
            remedy = (
                "its parameters are one model, and `prompt` or `prompts` if it takes some: "
                f"`def {name}({(names or ['lm'])[0]}, prompt)`"
            )
            words = f"`{name}({', '.join(names)})` cannot be called by a check"
            yield words, remedy, function.lineno


def _as_function(text: str, tree: ast.Module) -> tuple[int, str] | None:
    """Turn a script that traces on import into `hf(model)`: its statements up to the last trace,
    without imports, functions, classes and the line that loads the model. Return the first trace's
    line and the function, or None for a file that does not trace on import.
    """
    body = list(tree.body)
    for node in tree.body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            body[body.index(node) : body.index(node) + 1] = node.body
    defines = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    body = [node for node in body if not isinstance(node, defines)]
    tracing = [node for node in body if _TRACES.search(ast.unparse(node))]
    if not tracing:
        return None
    name, kept = "model", ""
    for node in body[: body.index(tracing[-1]) + 1]:
        source = ast.get_source_segment(text, node, padded=True) or ast.unparse(node)
        if isinstance(node, ast.Assign) and _LOADS.search(source):
            name = ast.unparse(node.targets[0])
        else:
            kept += f"{textwrap.dedent(source)}\n"
    saved = re.findall(r"^\s*(\w+)(?:, \w+)* = .*\.save\(\)", kept, flags=re.MULTILINE)
    filled = re.findall(r"^(\w+) = (?:\[\]|\{\}|dict\(\)|list\(\))", kept, flags=re.MULTILINE)
    returned = ", ".join(f'"{one}": {one}' for one in dict.fromkeys([*filled, *saved]))
    lines = textwrap.indent(f"{kept}return {{{returned}}}", "    ")
    return tracing[0].lineno, f"def hf({name}):\n{lines}"

"""A user's file, read and never run: its functions, where each value comes from, what it writes.

A file has one function `trace(lm)`, on the adapter that is alike on every engine, or two,
`hf(model)` and `vllm(model)`, as users port them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from conformance.check import scripts
from conformance.errors import ConformanceError
from conformance.inputs import text_file
from conformance.records import Site

#: The forms a file can have; the first function is what transformers runs.
BOTH, PORTED = ("trace",), ("hf", "vllm")

_SHAPE = """\
def trace(lm):
    with lm.trace("The capital of France is"):
        hidden = lm.layers[2].stream.save()
    return {"hidden": hidden}"""


#: The attributes of a module by which nnsight gives what it computes.
_VALUES = frozenset({"output", "input", "inputs", "stream", "live", "logits"})


@dataclass(frozen=True)
class UserFile:
    """`functions` are those that a check knows, by name; `name` is the file's own in a check."""

    path: Path
    text: str
    functions: dict[str, ast.FunctionDef]
    name: str

    @property
    def ported(self) -> bool:
        return "hf" in self.functions

    @property
    def lacks_a_port(self) -> bool:
        """Whether the file has `hf` alone."""
        return self.function_for("vllm") not in self.functions

    def function_for(self, side: str) -> str:
        """The name of what runs on transformers ("hf") or on vLLM ("vllm")."""
        return side if self.ported else "trace"

    def line(self, number: int) -> str:
        return self.text.splitlines()[number - 1]

    def segment(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ""

    def order_of(self, site: Site) -> tuple[int, ...]:
        """Return what sorts a value by where the reference's function last assigns its parts."""
        return (self._made.get(site.name, (0, ""))[0],)

    def is_stacked(self, name: str) -> bool:
        """Return whether a value, by its name, is made of several that were stacked."""
        return bool(re.search(r"\b(?:stack|cat)\(", self._made.get(name, (0, ""))[1]))

    def first_write(self) -> int:
        """Return the first line of the reference's function that writes to a module, or 0."""
        function = self.functions[self.function_for("hf")]
        stored = (
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, (ast.Attribute, ast.Subscript))
            and isinstance(node.ctx, ast.Store)
            and any(isinstance(n, ast.Attribute) and n.attr in _VALUES for n in ast.walk(node))
        )
        return min(stored, default=0)

    @cached_property
    def _made(self) -> dict[str, tuple[int, str]]:
        """For each name that the reference's function returns the last line that assigns a part of
        its value, and the text of what it is made of.
        """
        function = self.functions[self.function_for("hf")]
        lines: dict[str, tuple[int, str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            at, text = lines.get(name.id, (0, ""))
                            more = f"{text} {self.segment(node.value)}"
                            lines[name.id] = max(at, node.lineno), more
        found = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(key, ast.Constant):
                        parts = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)]
                        made = [lines[part] for part in parts if part in lines]
                        text = " ".join([self.segment(value), *(text for _, text in made)])
                        found[str(key.value)] = (max((at for at, _ in made), default=0), text)
        return found


def read(path: Path) -> UserFile:
    """Raises ConformanceError for what is no such file, with the edit that makes it one."""
    text = text_file.read(path)
    try:
        tree = ast.parse(text, filename=str(path))
    except (ValueError, MemoryError, RecursionError) as error:
        words = "it is nested too deeply" if not str(error) else error
        raise ConformanceError(f"is no Python: {words}", path=path) from error
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise ConformanceError(
            f"is no Python: {error.msg}{line}", path=path, line=error.lineno
        ) from error
    found = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in BOTH + PORTED
    }
    try:
        _require_form(path, text, tree, found)
    except RecursionError as error:
        raise ConformanceError("is nested too deeply to be read", path=path) from error
    for function in found.values():
        _require_parameters(path, function)
    return UserFile(path.resolve(), text, found, _name(path))


def _name(path: Path) -> str:
    """Of the file in a check, safe as a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", path.stem).strip("-.+") or "trace"


def read_all(paths: Sequence[Path]) -> tuple[UserFile, ...]:
    """These files, each under a name of its own: with its folder's where two are called alike.

    Raises ConformanceError for what cannot be checked, and for a file that is named twice.
    """
    files = tuple(map(read, paths))
    alike = Counter(file.name for file in files)
    named = tuple(
        replace(file, name=f"{_name(file.path.parent)}-{file.name}")
        if alike[file.name] > 1
        else file
        for file in files
    )
    twice = next((name for name, count in Counter(f.name for f in named).items() if count > 1), "")
    if twice:
        raise ConformanceError(
            f"two files are {twice.replace('-', '/', 1)}.py", remedy="check one after the other"
        )
    return named


def _require_form(
    path: Path, text: str, tree: ast.Module, found: dict[str, ast.FunctionDef]
) -> None:
    if "trace" in found and len(found) > 1:
        raise ConformanceError(
            f"has `trace` and `{next(name for name in found if name != 'trace')}`",
            path=path,
            remedy="keep `trace(lm)` alone, or `hf(model)` and `vllm(model)`",
        )
    if "trace" in found or "hf" in found:
        return
    if "vllm" in found:
        raise ConformanceError(
            "has `vllm(model)` and nothing to compare it with",
            path=path,
            remedy="add `hf(model)`, which returns the same names on transformers",
        )
    if (script := scripts.as_function(text, tree)) is not None:
        line, function = script
        shown = textwrap.indent(function, "      ")
        raise ConformanceError(
            "traces while it is imported: a check calls a function, once for each way to compute",
            path=path,
            line=line,
            remedy=f"keep the imports, and put this function in the place of the rest:\n{shown}",
        )
    raise ConformanceError(
        "has neither `trace(lm)` nor `hf(model)` and `vllm(model)`",
        path=path,
        remedy=f"write for example:\n{textwrap.indent(_SHAPE, '      ')}",
    )


def _require_parameters(path: Path, function: ast.FunctionDef) -> None:
    names = [argument.arg for argument in function.args.args]
    if len(names) in {1, 2} and names[1:] in ([], ["prompt"], ["prompts"]):
        return
    raise ConformanceError(
        f"`{function.name}({', '.join(names)})` cannot be called by a check",
        path=path,
        line=function.lineno,
        remedy=f"its parameters are one model, and `prompt` or `prompts` if it takes some: "
        f"`def {function.name}({(names or ['lm'])[0]}, prompt)`",
    )

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
from pathlib import Path

from conformance.check.parsing import old_scripts
from conformance.errors import ConformanceError
from conformance.inputs import text_file

#: The forms a file can have; the first function is what transformers runs.
BOTH, PORTED = ("trace",), ("hf", "vllm")

_SHAPE = """\
def trace(lm):
    with lm.trace("The capital of France is"):
        hidden = lm.layers[2].stream.save()
    return {"hidden": hidden}"""


#: Expressions that need no parentheses before an index.
_PRIMARY = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.List, ast.Tuple, ast.Dict)


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

    def function_for(self, side: str) -> str:
        """The name of what runs on transformers ("hf") or on vLLM ("vllm")."""
        return side if self.ported else "trace"

    def line(self, number: int) -> str:
        return self.text.splitlines()[number - 1]

    def segment(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ""

    def operand(self, node: ast.expr) -> str:
        """An expression's text as an index, an attribute or a call can stand behind it."""
        text = self.segment(node)
        return text if isinstance(node, _PRIMARY) else f"({text})"


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
    script = old_scripts.as_function(text, tree)
    if script is not None:
        when = "as a script" if script.guarded else "while it is imported"
        shown = textwrap.indent(script.function, "      ")
        raise ConformanceError(
            f"traces {when}: a check calls a function, once for each way to compute",
            path=path,
            line=script.line,
            remedy=f"{script.words}:\n{shown}" if script.function else script.words,
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

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
    _require_form(path, text, tree, found)
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
    blocks = _traced_blocks(tree)
    if blocks:
        raise ConformanceError(
            "traces while it is imported: a check calls a function, once for each way to compute",
            path=path,
            line=blocks[0].lineno,
            remedy="make it one, and leave out what loads the model, which a check hands to it:\n"
            + textwrap.indent(as_function(text, tree, blocks), "      "),
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


def _traced_blocks(tree: ast.Module) -> list[ast.With]:
    """The blocks at the top of the file that open a trace."""
    return [
        node
        for node in tree.body
        if isinstance(node, ast.With)
        and any(
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr in {"trace", "generate", "invoke", "edit"}
            for one in (item.context_expr for item in node.items)
        )
    ]


def as_function(text: str, tree: ast.Module, blocks: Sequence[ast.With]) -> str:
    """The blocks as the body of `hf(model)`, with what they use of the model and what they fill,
    returning what they save.
    """
    root = ast.unparse(blocks[0].items[0].context_expr).split(".")[0]
    saved = list(dict.fromkeys(name for block in blocks for name in saved_names(block)))
    begin, end = tree.body.index(blocks[0]), tree.body.index(blocks[-1])
    before = [node for node in tree.body[:begin] if _belongs(node, root, saved)]
    between = [node for node in tree.body[begin : end + 1] if not isinstance(node, ast.Expr)]
    pieces = (ast.get_source_segment(text, node, padded=True) for node in [*before, *between])
    body = "\n".join(textwrap.dedent(piece or "").rstrip() for piece in pieces)
    returned = ", ".join(f'"{name}": {name}' for name in saved)
    return f"def hf({root}):\n{textwrap.indent(body, '    ')}\n    return {{{returned}}}"


def _belongs(node: ast.stmt, root: str, saved: Sequence[str]) -> bool:
    """Does a statement name a part of the model, or make what the blocks fill?"""
    if not isinstance(node, ast.Assign):
        return False
    bound = {one.id for one in node.targets if isinstance(one, ast.Name)}
    used = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    return root not in bound and (root in used or bool(bound & set(saved)))


def saved_names(node: ast.AST) -> list[str]:
    """The variables to which something saved is assigned or added, in the order of the text."""
    found = []
    for child in ast.walk(node):
        if isinstance(child, ast.Assign) and _saves(child.value):
            parts = (one.value if isinstance(one, ast.Subscript) else one for one in child.targets)
            found += [one.id for one in parts if isinstance(one, ast.Name)]
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            filled = child.func.value
            adds = child.func.attr == "append" and any(map(_saves, child.args))
            found += [filled.id] if adds and isinstance(filled, ast.Name) else []
    return list(dict.fromkeys(found))


def _saves(value: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Call)
        and (
            (isinstance(one.func, ast.Attribute) and one.func.attr == "save")
            or (isinstance(one.func, ast.Name) and one.func.id == "save")
        )
        for one in ast.walk(value)
    )

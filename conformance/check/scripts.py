"""Scripts that trace while they are imported, written as the function that a check calls."""

from __future__ import annotations

import ast
import re
import textwrap

#: How nnsight's models are loaded, and what begins a trace.
_LOADS = re.compile(r"\b(?:LanguageModel|TransformersModel|VLLM)\(")
_TRACES = frozenset({"trace", "generate"})

_DEFINES = (ast.FunctionDef, ast.ClassDef)


def as_function(text: str, tree: ast.Module) -> tuple[int, str] | None:
    """Return the first line at which a script traces, and `hf(model)` with its statements.

    Imports, functions and classes stay where they are; the line that loads the model goes, and so
    does what stands behind the last trace. None for a file that does not trace by itself.
    """
    body = [inner for node in tree.body for inner in _unguarded(node)]
    tracing = [node for node in body if _traces(node)]
    if not tracing:
        return None
    last = body.index(tracing[-1])
    name = "model"
    kept: list[str] = []
    for node in body[: last + 1]:
        source = ast.get_source_segment(text, node, padded=True) or ast.unparse(node)
        if isinstance(node, ast.Assign) and _LOADS.search(source):
            name = ast.unparse(node.targets[0])
        elif not isinstance(node, (ast.Import, ast.ImportFrom, *_DEFINES)):
            kept.append(textwrap.dedent(source))
    statements = "\n".join(kept)
    saved = re.findall(r"^\s*(\w+)(?:, \w+)* = .*\.save\(\)", statements, flags=re.MULTILINE)
    filled = re.findall(r"^(\w+) = (?:\[\]|\{\}|dict\(\)|list\(\))", statements, flags=re.MULTILINE)
    names = dict.fromkeys([*filled, *saved])
    returned = ", ".join(f'"{one}": {one}' for one in names)
    lines = textwrap.indent(f"{statements}\nreturn {{{returned}}}", "    ")
    return tracing[0].lineno, f"def hf({name}):\n{lines}"


def _unguarded(node: ast.stmt) -> list[ast.stmt]:
    """The statements of `if __name__ == "__main__":`, any other one as it is."""
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return node.body
    return [node]


def _traces(node: ast.stmt) -> bool:
    if isinstance(node, _DEFINES):
        return False
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(isinstance(func, ast.Attribute) and func.attr in _TRACES for func in calls)

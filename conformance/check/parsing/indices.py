"""One way to write an index that can be written in two."""

from __future__ import annotations

import ast
import copy
from typing import Any, TypeVar

_Node = TypeVar("_Node", bound=ast.AST)


def one_by_one(node: _Node) -> _Node:
    """The same with `x[a, b]` as `x[a][b]`, as far as no slice stands before it: what a tensor of
    all prompts is asked on transformers, a mapping of the prompts' own is asked on vLLM.
    """
    asked: _Node = _OneByOne().visit(copy.deepcopy(node))
    return asked


class _OneByOne(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        value, parts = node.value, [*_parts(node.slice)]
        while len(parts) > 1 and _takes_one(parts[0]):
            value = _located(ast.Subscript(value, parts.pop(0), ast.Load()), node)
        index = parts[0] if len(parts) == 1 else _located(ast.Tuple(parts, ast.Load()), node.slice)
        return _located(ast.Subscript(value, index, node.ctx), node)


def _parts(index: ast.expr) -> list[ast.expr]:
    return index.elts if isinstance(index, ast.Tuple) and index.elts else [index]


def _takes_one(part: ast.expr) -> bool:
    """Does a part of an index take one entry of its axis? A slice, `...` and `None` do not."""
    constant = isinstance(part, ast.Constant) and type(part.value) is not int
    return not isinstance(part, (ast.Slice, ast.Starred)) and not constant


def _located(node: ast.expr, of: ast.expr) -> ast.expr:
    return ast.copy_location(node, of)

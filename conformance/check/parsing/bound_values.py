"""Names that hold a layer or a module's value in `hf(model)`, and what their indices become there.

What is read into a name has lost its batch axis on vLLM, too, and of two values that a layer
returns it holds the sum: written to it nothing arrives.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from conformance.check.parsing import module_values, statements

_LAYERS = r"(?:^|\.)(?:layers|h|blocks)$"

_INDEX = r"(?P<index>(?:\[[^\[\]]*\])+)"

_LOST = (
    "what is written here is a sum there, of the two values that a layer returns, and does not go "
    "back: write to the layer's own `output`"
)

#: A call that goes over an axis by its number.
_OVER = r"(?<![\w.])(?P<name>[A-Za-z_]\w*)(?:\[0\])?\.\w+\((?:dim|axis) ?= ?[0-9]"

_AXIS = (
    "if this is an activation, it has an axis less there, and an axis by its number is another "
    "one: this line is yours to decide"
)

#: Why a line is not known that takes something of a batch.
BATCH = "if this is an activation, it has no batch axis there: an index takes a token"


@dataclass(frozen=True)
class Bound:
    """The names of layers, those of values by the kind of their module, and all of those that
    something of an activation may be in.
    """

    layers: frozenset[str] = frozenset()
    values: dict[str, str] = field(default_factory=dict)
    activations: frozenset[str] = frozenset()

    def ported(self, line: str) -> tuple[str, list[str], bool]:
        """A line as it is there, why, and whether all of it is known."""
        for name, kind in self.values.items():
            if kind == "layer" and _writes(line, name):
                return line, [_LOST], False
        after, why = line, []
        for name, kind in self.values.items():

            def mended(match: re.Match[str], name: str = name, kind: str = kind) -> str:
                return name + module_values.index_there(match["index"], kind)

            after = re.sub(rf"(?<![\w.]){re.escape(name)}{_INDEX}", mended, after)
        if after != line:
            why = [module_values.NO_BATCH]
        unknown = self._unknown(after)
        return after, [*why, *unknown], not unknown

    def _unknown(self, line: str) -> list[str]:
        """Why a line cannot be known: it indexes a batch of what is made of an activation."""
        for match in re.finditer(rf"(?<![\w.\])])(?P<name>[A-Za-z_]\w*){_INDEX}", line):
            unsure = match["name"] in self.activations - self.values.keys()
            if unsure and re.match(r"\[(?:0|:), *[-:\w]", match["index"]):
                return [BATCH]
        over = re.finditer(_OVER, line)
        unsure_of = self.activations - self.values.keys()
        return [_AXIS] if any(match["name"] in unsure_of for match in over) else []


def bound(function: ast.FunctionDef, activations: frozenset[str] = frozenset()) -> Bound:
    """What a function binds to names; `activations` are those that may hold some."""
    layers: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.For, ast.comprehension)):
            layers |= _over(node.target, node.iter)
        elif isinstance(node, ast.Assign) and module_values.is_layer(ast.unparse(node.value)):
            layers |= set(statements.names_of(node.targets[0]))
    found = Bound(frozenset(layers), activations=activations)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = module_values.values(ast.unparse(node.value), found.layers, same=True)
            if len(values) == 1 and re.match(_WHOLE, ast.unparse(node.value)):
                found.values[node.targets[0].id] = values[0].kind
    return found


#: A module's value as it is, or a copy of it, and no rows of it.
_WHOLE = r"[\w.\[\]]+\.(?:output|input)(?:\.(?:clone|detach|float|save|cpu)\(\))*$"


def _over(target: ast.expr, values: ast.expr) -> set[str]:
    """The name that runs over a model's layers, alone or beside its number."""
    if isinstance(values, ast.Call) and ast.unparse(values.func) == "enumerate":
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            return set()
        target, values = target.elts[1], values.args[0]
    root = values.value if isinstance(values, ast.Subscript) else values
    return set(statements.names_of(target)) if re.search(_LAYERS, ast.unparse(root)) else set()


def _writes(line: str, name: str) -> bool:
    written = rf"^\s*{re.escape(name)}(?:\[[^\[\]]*\])+\s*[-+*/]?=(?!=)"
    in_place = rf"^\s*{re.escape(name)}(?:\[[^\[\]]*\])*\s*(?:[-+*/]=|\.\w+_\()"
    return bool(re.search(written, line) or re.search(in_place, line))

"""Functions that leave the axes before the last as they are: torch's by their names, and those of a
user's file, also methods of its classes, by their text. Nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from conformance.check.parsing import statements
from conformance.check.parsing.scopes import Scopes

#: Methods that leave the axes as they are.
KEEPS = frozenset(
    {"clone", "save", "detach", "to", "float", "double", "half", "bfloat16", "cpu", "contiguous"}
)

#: And those that compute each number of its own, or over the last axis, by torch's names.
ALIKE = frozenset(
    {
        *("softmax", "log_softmax", "exp", "log", "log1p", "log2", "expm1", "sqrt", "rsqrt", "abs"),
        *("neg", "square", "sigmoid", "tanh", "relu", "gelu", "silu", "softplus", "clamp", "pow"),
        *("nan_to_num", "round", "sign", "normalize", "layer_norm", "rms_norm", "linear"),
        *("matmul", "add", "sub", "mul", "div", "type", "logsigmoid", "leaky_relu"),
    }
)

#: Where functions of torch are, as people call them.
TORCH = frozenset({"torch", "t", "F", "torch.nn.functional", "nn.functional", "torch.special"})

#: Modules of torch that compute each number of its own, or over the last axis.
_LAYERS = frozenset(
    {
        *("Linear", "LayerNorm", "RMSNorm", "Identity", "Dropout", "ReLU", "LeakyReLU", "GELU"),
        *("SiLU", "Sigmoid", "Tanh", "Softplus", "ELU"),
    }
)

#: What is called when an object is.
_CALLED = ("forward", "__call__")

#: Through how many functions of the file a value is followed.
_HOPS = 6


@dataclass(frozen=True)
class _Made:
    """What a variable or an attribute holds that was made by a call: an object of a class of the
    file, or one that computes each row on its own.
    """

    of: ast.ClassDef | None = None


@dataclass(frozen=True)
class Callee:
    """A function that is called, with the class whose method it is; no function: a part of torch
    that computes each row on its own.
    """

    function: ast.FunctionDef | None
    owner: ast.ClassDef | None = None

    def given(self, call: ast.Call) -> dict[str, ast.expr]:
        """What a call gives to its parameters."""
        if self.function is None:
            return {"": call.args[0]} if len(call.args) == 1 else {}
        every = [*self.function.args.posonlyargs, *self.function.args.args]
        static = any("static" in ast.unparse(one) for one in self.function.decorator_list)
        names = [one.arg for one in every[0 if self.owner is None or static else 1 :]]
        by_name = {one.arg: one.value for one in call.keywords if one.arg}
        return by_name | dict(zip(names, call.args, strict=False))


def applied(call: ast.Call) -> tuple[str, ast.expr | None]:
    """The function or method that is called, and what it is applied to."""
    function, first = call.func, next(iter(call.args), None)
    if not isinstance(function, ast.Attribute):
        return ast.unparse(function), first
    method = ast.unparse(function.value) not in TORCH
    return function.attr, function.value if method else first


class Callees:
    """The functions and classes of a file, as one of its functions calls them."""

    def __init__(self, text: str, scopes: Scopes) -> None:
        self.scopes = scopes
        self.tree = ast.parse(text)
        self.classes = {one.name: one for one in self.tree.body if isinstance(one, ast.ClassDef)}
        own = {one.name: one for one in self.tree.body if isinstance(one, ast.FunctionDef)}
        self.functions = own | scopes.helpers

    def of(self, function: ast.expr, near: ast.stmt) -> Callee | None:
        """What is called in a statement; None where the file does not say."""

        def bound(name: str) -> ast.expr | None:
            made = self.scopes.binding(name, near)
            return statements.value_of(made) if made is not None else self._global(name)

        return self.callee(function, _Within(bound))

    def given(self, callee: Callee, call: ast.Call) -> ast.expr | None:
        """The one argument whose axes before the last are those of what a call gives back, None
        where there is none such.
        """
        found = [v for name, v in callee.given(call).items() if self.keeps(callee, name, _HOPS)]
        return found[0] if len(found) == 1 else None

    def callee(self, function: ast.expr, within: _Within) -> Callee | None:
        """What is called by an expression that stands there."""
        if isinstance(function, ast.Name) and function.id in self.functions:
            return Callee(self.functions[function.id])
        made = self._made(function, within, _HOPS)
        if made is not None:
            return _method(made.of, *_CALLED) if made.of is not None else Callee(None)
        if not isinstance(function, ast.Attribute):
            return None
        of = self._made(function.value, within, _HOPS)
        owner = within.owner if ast.unparse(function.value) == "self" else of.of if of else None
        return _method(owner, function.attr) if owner is not None else None

    def _global(self, name: str) -> ast.expr | None:
        return _sole(self.tree.body, name)

    def _made(self, value: ast.expr | None, within: _Within, hops: int) -> _Made | None:
        """Which object an expression is, where a call makes it."""
        if value is None or not hops:
            return None
        if isinstance(value, ast.Name):
            return self._made(within.bound(value.id), within, hops - 1)
        if isinstance(value, ast.Attribute):
            owner = within.owner if ast.unparse(value.value) == "self" else None
            held = _sole(ast.walk(owner), ast.unparse(value)) if owner is not None else None
            return self._made(held, _Within(self._global), hops - 1)
        if not isinstance(value, ast.Call):
            return None
        function = value.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            return self._made(function.value, within, hops)  # `SAE(width).eval()`
        return self._by_call(value, within, hops)

    def _by_call(self, call: ast.Call, within: _Within, hops: int) -> _Made | None:
        root, _, last = ast.unparse(call.func).rpartition(".")
        for name in (last, root):  # `SAE(width)`, `SAE.load(path)`
            if name in self.classes:
                return _Made(self.classes[name])
        if last == "Sequential":
            parts = [self._made(one, within, hops - 1) for one in call.args]
            return _Made() if all(one == _Made() for one in parts) else None
        maker = self.functions.get(last) if not root else None
        if maker is not None:
            inner = _Within(lambda name: _sole(ast.walk(maker), name))
            made = {self._made(one.value, inner, hops - 1) for one in _returns(maker)}
            return made.pop() if len(made) == 1 else None
        return _Made() if last in _LAYERS else None

    def keeps(self, callee: Callee, parameter: str, hops: int) -> bool:
        """Has all that a function returns the leading axes of what is given to a parameter?"""
        function = callee.function
        if function is None:
            return True
        if not hops:
            return False
        made: dict[str, list[ast.expr | None]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    one = node.value if isinstance(target, ast.Name) else None
                    for name in statements.names_of(target):
                        made.setdefault(name, []).append(one)
        rows = _Rows(self, _Within(lambda name: _sole(ast.walk(function), name), callee.owner))
        rows.names.add(parameter)
        for _ in made:
            rows.names |= {n for n, each in made.items() if all(rows.of(v, hops) for v in each)}
        given = all(rows.of(one, hops) for one in made.get(parameter, []))
        returned = _returns(function)
        return given and bool(returned) and all(rows.of(one.value, hops) for one in returned)


@dataclass(frozen=True)
class _Within:
    """Where an expression stands: what its variables are bound to, and the class of `self`."""

    bound: Callable[[str], ast.expr | None]
    owner: ast.ClassDef | None = None


@dataclass
class _Rows:
    """The variables of a function that have the leading axes of its parameter."""

    callees: Callees
    within: _Within
    names: set[str] = field(default_factory=set)

    def of(self, value: ast.expr | None, hops: int) -> bool:
        """Has an expression these axes?"""
        if isinstance(value, ast.Name):
            return value.id in self.names
        if isinstance(value, ast.UnaryOp):
            return self.of(value.operand, hops)
        if isinstance(value, ast.IfExp):
            return self.of(value.body, hops) and self.of(value.orelse, hops)
        if isinstance(value, ast.Compare):
            return self.of(value.left, hops)
        if isinstance(value, ast.BinOp):
            right = not isinstance(value.op, ast.MatMult) and self.of(value.right, hops)
            return self.of(value.left, hops) or right
        return isinstance(value, ast.Call) and self._called(value, hops)

    def _called(self, call: ast.Call, hops: int) -> bool:
        callee = self.callees.callee(call.func, self.within)
        if callee is not None:
            given = callee.given(call).items()
            return any(
                self.of(v, hops) and self.callees.keeps(callee, n, hops - 1) for n, v in given
            )
        name, value = applied(call)
        return name in KEEPS | ALIKE and self.of(value, hops)


def _method(owner: ast.ClassDef, *names: str) -> Callee | None:
    methods = {one.name: one for one in owner.body if isinstance(one, ast.FunctionDef)}
    return next((Callee(methods[name], owner) for name in names if name in methods), None)


def _sole(within: Iterable[ast.AST], target: str) -> ast.expr | None:
    """What is assigned to a variable or an attribute, where that is done once."""
    made = [
        one.value
        for one in within
        if isinstance(one, ast.Assign) and target in map(ast.unparse, one.targets)
    ]
    return made[0] if len(made) == 1 else None


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    return [one for one in ast.walk(function) if isinstance(one, ast.Return)]

"""A user's function with the functions of its file that it uses: their statements, by scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from conformance.check.parsing import statements

_Function = ast.FunctionDef | ast.Lambda

#: What a tensor is asked of its form.
FORM = frozenset({"dtype", "device", "shape", "ndim"})

#: The same, as methods.
_ASKS = frozenset({"size", "dim", "numel", "element_size"})

#: A statement, and which of its blocks.
_Branch = tuple[ast.stmt, str]


def used(tree: ast.Module, function: ast.FunctionDef) -> list[ast.stmt]:
    """The helpers at the top of the file that a function names, and that those name: functions,
    and lambdas that have a name.
    """
    known = {name: node for node in tree.body for name in _helper_names(node)}
    found: list[ast.stmt] = []
    waiting: list[ast.stmt] = [function]
    while waiting:
        for node in ast.walk(waiting.pop(0)):
            helper = known.get(node.id) if isinstance(node, ast.Name) else None
            if helper is not None and helper not in found and helper.lineno != function.lineno:
                found.append(helper)
                waiting.append(helper)
    return found


def _helper_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        return statements.bound(node)
    return []


def numbers_in(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a node and has numbers of a value: all but what a tensor is asked of its form."""
    of = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(of, ast.Attribute) and of.attr in FORM:
        return
    asked = node.func if isinstance(node, ast.Call) else None
    if isinstance(asked, ast.Attribute) and asked.attr in _ASKS:
        return
    if isinstance(asked, ast.Name) and asked.id == "len":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from numbers_in(child)


class Scopes:
    """The statements of a function and of its helpers, in the order of the text."""

    def __init__(self, function: ast.FunctionDef, helpers: list[ast.stmt]) -> None:
        self.function = function
        self.roots = [function, *helpers]
        self._scopes: dict[ast.stmt, ast.stmt] = {}
        self._branches: dict[ast.stmt, frozenset[_Branch]] = {}
        for root in self.roots:
            self._enter(root, root)
            self._branch(root, frozenset())
        self.statements = sorted(self._scopes, key=lambda statement: statement.lineno)
        self.helpers = {
            one.name: one
            for one in self.statements
            if isinstance(one, ast.FunctionDef) and one is not function
        }
        self.assigned: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            for name in statements.bound(statement):
                self.assigned.setdefault(name, []).append(statement)

        self._ranges: dict[str, list[ast.expr]] = {}
        for node in self.nodes():
            if isinstance(node, (ast.For, ast.comprehension)):
                for part in ast.walk(node.target):
                    if isinstance(part, ast.Name):
                        self._ranges.setdefault(part.id, []).append(node.iter)

    def _enter(self, statement: ast.stmt, scope: ast.stmt) -> None:
        self._scopes[statement] = scope
        inner = statement if isinstance(statement, ast.FunctionDef) else scope
        for child in ast.walk(statement):
            for each in ast.iter_child_nodes(child):
                if isinstance(each, ast.stmt) and each not in self._scopes:
                    self._enter(each, inner)

    def _branch(self, statement: ast.stmt, around: frozenset[_Branch]) -> None:
        """Note in which branches a statement stands, and those in it."""
        self._branches[statement] = around
        for field in ("body", "orelse", "finalbody", "handlers"):
            sure = field == "body" and isinstance(statement, (ast.With, ast.FunctionDef))
            inside = around if sure else around | {(statement, field)}
            for one in getattr(statement, field, None) or []:
                each = one.body if isinstance(one, ast.ExceptHandler) else [one]
                for inner in each:
                    if isinstance(inner, ast.stmt):
                        self._branch(inner, inside)

    def nodes(self) -> Iterator[ast.AST]:
        """Everything in the function and its helpers."""
        for root in self.roots:
            yield from ast.walk(root)

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        holding = [s for s in self.statements if any(child is node for child in ast.walk(s))]
        return holding[-1]

    def makers(self, name: str, near: ast.stmt) -> list[ast.stmt]:
        """The statements that make a variable, as a statement sees it: those of its own function,
        or else any. Of a name that is bound several times the nearest one above counts, and what is
        put into it from there on.
        """
        every = self.assigned.get(name, [])
        own = [one for one in every if self._scopes[one] is self._scopes.get(near)]
        return self._left(name, own, near) or own or every

    def binding(self, name: str, near: ast.stmt) -> ast.stmt | None:
        """The statement that a variable has its value from where another statement changes it."""
        made = [one for one in self.makers(name, near) if statements.binds(one, name)]
        above = [one for one in made if _place(one) < _place(near)]
        return next(iter((*reversed(above), *made)), None)

    def _left(self, name: str, own: list[ast.stmt], near: ast.stmt) -> list[ast.stmt]:
        """Which of these a statement still sees something of; none where that cannot be told."""
        binding = [one for one in own if statements.binds(one, name)]
        above = [one for one in binding if _place(one) < _place(near)]
        around = self._branches.get(near, frozenset())
        sure = [one for one in above if self._branches[one] <= around]
        if not sure:
            return []
        last = sure[-1]
        # What stands below in a loop around the statement alone may have been run before it.
        loops = [
            loop
            for loop, _ in around - self._branches[last]
            if isinstance(loop, (ast.For, ast.While))
        ]
        again = {one for loop in loops for one in ast.walk(loop)}
        below = [one for one in binding if one not in above and one not in again]
        end = _place(below[0]) if below else None
        return [
            one
            for one in own
            if _place(last) <= _place(one)
            and (one in above or one in again or one not in binding)
            and (end is None or one in binding or _place(one) < end)
        ]

    def arguments(self, name: str, near: ast.stmt) -> list[tuple[ast.expr, ast.stmt]]:
        """What the calls of a helper give to its parameter of this name, and where they stand; of
        the helper in which a statement is.
        """
        scope = self._scopes.get(near)
        if not isinstance(scope, ast.FunctionDef) or scope is self.function:
            return []
        names = [one.arg for one in (*scope.args.posonlyargs, *scope.args.args)]
        if name not in names:
            return []
        found = []
        for statement in self.statements:
            if hasattr(statement, "body"):
                continue
            for call in ast.walk(statement):
                if not isinstance(call, ast.Call) or ast.unparse(call.func) != scope.name:
                    continue
                given = {k.arg: k.value for k in call.keywords} | dict(
                    zip(names, call.args, strict=False)
                )
                if name in given:
                    found.append((given[name], statement))
        return found

    def names(self, node: ast.AST) -> list[str]:
        """The variables whose values are in it, and those over which one of them runs. What a
        tensor is asked of its form, `hidden.dtype`, has none of its numbers.
        """
        asked = [n.value for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr in FORM]
        every = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
        found = [one.id for one in every if one not in asked]
        over = [each for name in found for each in self._ranges.get(name, [])]
        more = [one.id for each in over for one in ast.walk(each) if isinstance(one, ast.Name)]
        return list(dict.fromkeys(found + more))

    def used_after(self, statement: ast.stmt, names: list[str]) -> bool:
        """Is one of these variables used below a statement, or in a loop with it?"""
        loops = [one for one in self.statements if isinstance(one, (ast.For, ast.While))]
        around = [loop for loop in loops if any(n is statement for n in ast.walk(loop))]
        first = min((loop.lineno for loop in around), default=statement.lineno + 1)
        return any(
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
            for later in self.statements
            if later.lineno >= first and later is not statement and not hasattr(later, "body")
            for node in ast.walk(statements.value_of(later) or later)
        )

    def left_behind(self, name: str, line: int | None) -> list[ast.stmt]:
        """The statements that make a variable in a block of a trace from which a line of the same
        function, outside of the block and run after it, takes it; where the line is not known, any
        line that takes it so.
        """
        lines = [line] if line is not None else self._taken(name)
        found = []
        for maker in self.assigned.get(name, []):
            function = self._scopes[maker]
            around = [one for one in ast.walk(function) if maker in ast.walk(one)]
            blocks = [one for one in around if statements.opens_trace(one) is not None]
            loops = [one for one in around if isinstance(one, (ast.For, ast.While))]
            if any(
                self.function_at(number) is function and _run_after(number, block, loops)
                for number in lines
                for block in blocks
                if isinstance(block, (ast.With, ast.AsyncWith))
            ):
                found.append(maker)
        return found

    def _taken(self, name: str) -> list[int]:
        """The lines on which a variable is read."""
        return [
            node.lineno
            for node in self.nodes()
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]

    def holds(self, line: int) -> bool:
        """Does a line stand in the function, or in a helper of it?"""
        return self.function_at(line) is not None

    def function_at(self, line: int) -> ast.stmt | None:
        """The innermost function in which a line stands."""
        functions = [*self.roots, *self.helpers.values()]
        around = [one for one in functions if one.lineno <= line <= (one.end_lineno or one.lineno)]
        return max(around, key=lambda one: one.lineno, default=None)

    def returns(self, function: ast.stmt) -> list[ast.Return]:
        """What a function gives back, and not what those inside of it do."""
        return [
            one
            for one in self.statements
            if isinstance(one, ast.Return) and self._scopes[one] is function
        ]


def _run_after(
    line: int, block: ast.With | ast.AsyncWith, loops: list[ast.For | ast.While]
) -> bool:
    """Does a line outside of a block run when the block has: below it, or in a loop with it?"""
    if line > (block.end_lineno or block.lineno):
        return True
    again = [one for one in loops if block in ast.walk(one)]
    first = min((one.lineno for one in again), default=block.body[0].lineno)
    return first <= line < block.body[0].lineno


def _place(statement: ast.stmt) -> tuple[int, int]:
    """Where it begins in the text."""
    return statement.lineno, statement.col_offset

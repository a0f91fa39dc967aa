"""Where in a user's function a value comes from, and where it writes: lines to show and to mend."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.check.parsing import statements, traced_runs
from conformance.check.parsing.containers import Container, containers
from conformance.check.parsing.returned_expressions import returned
from conformance.check.parsing.scopes import Scopes, numbers_in, used
from conformance.check.parsing.source import UserFile

#: What nnsight calls a module's values, and the adapter a layer's.
VALUES = frozenset({"output", "input", "inputs", "stream"})

#: And those of the model itself.
READ = VALUES | {"logits", "samples", "token"}


#: Functions that put several values together.
_STACKING = frozenset(
    {"stack", "vstack", "hstack", "dstack", "cat", "concat", "concatenate", "tensor", "as_tensor"}
)

#: Through how many names a value is followed that is only handed on.
_HANDED_ON = 8

#: Statements that make a value under a name.
_MAKING = (ast.Assign, ast.AugAssign)


@dataclass(frozen=True)
class Access:
    """`module.output[0]…` in the text: a module's value, read or written in a statement.

    `index` is the constant that comes right after it, where there is one; `layer` the number of
    the layer, where it is written out.
    """

    statement: ast.stmt
    node: ast.expr
    module: str
    value: str
    index: int | None
    layer: int | None

    @property
    def line(self) -> int:
        first, last = self.statement.lineno, self.statement.end_lineno or 0
        # What is written may have been read into a name further up.
        return self.node.lineno if first <= self.node.lineno <= last else first


class Places:
    """One function of a file, with the helpers that it uses. `dual` says that vLLM's layers return
    a stream in two halves, `flat` that no value there has a batch axis.
    """

    def __init__(
        self, file: UserFile, function: str, *, dual: bool = True, flat: bool = True
    ) -> None:
        self.file = file
        self.dual = dual
        self.flat = flat
        self.function = file.functions[function]
        self.scopes = Scopes(self.function, used(ast.parse(file.text), self.function))
        self._statements = self.scopes.statements
        self.assigned = self.scopes.assigned

    def origin(self, name: str) -> ast.stmt | None:
        """The statement that makes the value of this name: what saves it, or else returns it."""
        value = returned(self.scopes, name)
        return None if value is None else self._maker(value, hops=8)

    def made(self, name: str) -> ast.stmt | ast.expr | None:
        """The last statement that computes the value of this name, and does not only hand it on;
        what is returned itself, where that is computed there.
        """
        value = returned(self.scopes, name)
        if value is None:
            return None
        near = self.scopes.statement_of(value)
        value = statements.entry(value, name)
        found: ast.stmt | ast.expr = value
        for _ in range(_HANDED_ON):
            kept = statements.kept(statements.entry(value, name))
            makers = self.scopes.makers(kept.id, near) if isinstance(kept, ast.Name) else []
            given = statements.value_of(makers[-1]) if makers else None
            if given is None or makers[-1] is near:
                break
            found, near, value = makers[-1], makers[-1], given
        return found

    def filling(self, name: str) -> ast.stmt | None:
        """The statement that puts a value under this name of a mapping, where one does."""
        value = returned(self.scopes, name)
        statement = self.scopes.statement_of(value) if value is not None else None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        return statement if isinstance(target, ast.Subscript) else None

    def used_in_another_invoke(self, name: str) -> int | None:
        """The line on which an invoke uses a variable that another one makes, if any does."""
        invokes = [
            node
            for node in ast.walk(self.function)
            if isinstance(node, ast.With)
            and any(".invoke(" in ast.unparse(one.context_expr) for one in node.items)
        ]
        parts = [list(ast.walk(block)) for block in invokes]
        made = [
            statement
            for statement in self.assigned.get(name, [])
            if any(statement in inside for inside in parts)
        ]
        for inside in parts:
            if not made or any(statement in inside for statement in made):
                continue
            lines = [n.lineno for n in inside if isinstance(n, ast.Name) and n.id == name]
            if lines:
                return min(lines)
        return None

    def filled(self, name: str, line: int | None = None) -> Container | None:
        """What this name is made of, where a block fills it that was made outside of it; for ""
        the first one that this line uses, or of all.
        """
        made = self._containers()
        if not name:
            used = {
                node.id
                for node in self.scopes.nodes()
                if isinstance(node, ast.Name) and node.lineno == line
            }
            return next(iter((*(one for one in made if one.name in used), *made)), None)
        names = {n.id for part in self.parts(name) for n in ast.walk(part) if hasattr(n, "id")}
        lines = {statement.lineno for statement in self.way(name)}
        return next((one for one in made if one.name in names and one.made in lines), None)

    def made_there(self, filled: Container) -> tuple[int, str, str]:
        """Lines with what makes it in the block that fills it: the first one's number, as they are,
        and as they should be, "" where no one block does. Of a block right below the line that
        makes it the head is among them, and the line is taken away.
        """
        head = [self.file.line(n) for n in range(filled.opened, filled.first or 0)]
        if not filled.first or not head:  # several blocks fill it, or it begins behind the head
            return filled.made, self.file.line(filled.made), ""
        first = self.file.line(filled.first)
        indent = first[: len(first) - len(first.lstrip())]
        made = next(one for one in self.assigned[filled.name] if one.lineno == filled.made)
        names = statements.bound(made)
        together = [
            one
            for one in self._containers()
            if (one.made, one.first) == (filled.made, filled.first) and one.name in names
        ]
        if filled.opened == filled.made + 1 and len(together) == len(names):
            before = "\n".join((self.file.line(filled.made), *head))
            return (
                filled.made,
                before,
                "\n".join((*head, *(f"{indent}{x.there}" for x in together))),
            )
        return filled.first, first, f"{indent}{filled.there}\n{first}"

    def _containers(self) -> list[Container]:
        functions = [self.function, *self.scopes.helpers.values()]
        return [one for function in functions for one in containers(function)]

    def cut(self, name: str) -> int | None:
        """The line of the last index on the way to this name that takes rows, columns or a part."""
        for part in self.parts(name):
            for node in numbers_in(part):
                if isinstance(node, ast.Subscript) and statements.takes(node.slice):
                    return node.slice.lineno
        return None

    def reads(self, name: str) -> list[Access]:
        """Every value of a module that this name is computed from."""
        return [one for statement in self.way(name) for one in self.reads_in(statement, name)]

    def reads_in(self, statement: ast.stmt, name: str) -> list[Access]:
        """The values of modules in a statement on the way to a name: of one that gives several
        names theirs those alone that this name's is made of.
        """
        every = self.accesses(statement)
        value = returned(self.scopes, name)
        inside = [] if value is None else [*ast.walk(value)]
        own = [one for one in every if any(one.node is node for node in inside)]
        several = value is not None and statement is self.scopes.statement_of(value)
        return own if several else every

    def way(self, name: str) -> list[ast.stmt]:
        """The statements that a name is computed by, from what is returned back."""
        value = returned(self.scopes, name)
        return [] if value is None else [self.scopes.statement_of(value), *self._behind(value)]

    def parts(self, name: str) -> list[ast.AST]:
        """What is returned under a name, and what each statement on the way to it computes."""
        value = returned(self.scopes, name)
        behind = [] if value is None else self._behind(value)
        every = [value, *(statements.value_of(one) or one for one in behind)]
        return [part for part in every if part is not None]

    def stacked(self, name: str) -> bool:
        """Is a value put together of several on the way to this name?"""
        calls = (one for part in self.parts(name) for one in ast.walk(part))
        functions = (one.func for one in calls if isinstance(one, ast.Call))
        return any(ast.unparse(one).rpartition(".")[2] in _STACKING for one in functions)

    def kept_as_read(self, name: str) -> bool:
        """Is what is returned under this name what was read, or a view of it, and nothing that is
        computed from it? Then it is the engine's own memory.
        """
        return not any(
            statements.computes(_without_indices(part), self.scopes.helpers)
            for part in self.parts(name)
        )

    def way_to(self, write: Access, *, index: bool = True) -> list[ast.stmt]:
        """The statements that a write is made by: those that its value is computed by, with `index`
        those that say where it writes, and itself the last one.
        """
        value = statements.value_of(write.statement)
        parts = [value] if value is not None else []
        parts += statements.places_of(write.statement) if index else []
        behind = dict.fromkeys(one for part in parts for one in self._behind(part))
        return [*(one for one in behind if one is not write.statement), write.statement]

    def trace_of(self, number: int, total: int) -> ast.With | None:
        """The block in which a sequence of so many was run, None where the text does not tell."""
        return traced_runs.trace_of(self.scopes, ast.parse(self.file.text), number, total)

    def call_of(self, number: int, total: int) -> ast.Call | None:
        """The call that gives a prompt of so many, None where the text does not tell."""
        return traced_runs.call_of(self.scopes, ast.parse(self.file.text), number, total)

    def traces(self) -> list[ast.With]:
        """The blocks that open a trace, [] where not all of them are known."""
        return traced_runs.traces(self.scopes, ast.parse(self.file.text))

    def single(self, block: ast.With) -> bool:
        """Is a block that opens a trace run once, for one prompt?"""
        return traced_runs.single(self.scopes, ast.parse(self.file.text), block)

    def block(self, statement: ast.stmt) -> ast.stmt | None:
        """The innermost `with` around a statement, None outside of all."""
        around = [
            one
            for one in self._statements
            if isinstance(one, ast.With) and any(node is statement for node in ast.walk(one))
        ]
        return around[-1] if around else None

    def _behind(self, node: ast.AST) -> list[ast.stmt]:
        """The statements that make the variables in it, and theirs, back to the first, with what
        the helpers in it return and are called with.
        """
        waiting = [(node, self.scopes.statement_of(node))]
        found: list[ast.stmt] = []
        while waiting:
            within, near = waiting.pop(0)
            for name in self.scopes.names(within):
                for argument, call in self.scopes.arguments(name, near):
                    if call not in found:
                        found.append(call)
                        waiting.append((argument, call))
                for statement in self._behind_name(name, near):
                    if statement not in found and statement is not node:
                        found.append(statement)
                        waiting.append((statements.value_of(statement) or statement, statement))
        return found

    def _behind_name(self, name: str, near: ast.stmt) -> list[ast.stmt]:
        helper = self.scopes.helpers.get(name)
        returns: list[ast.stmt] = [*self.scopes.returns(helper)] if helper else []
        return [*self.scopes.makers(name, near), *returns]

    def rebound(self, of: Callable[[Access], bool]) -> tuple[ast.stmt, list[Access]] | None:
        """The last statement that makes a new value `of` such ones of modules, of which nothing
        becomes; with those that it is made of.
        """
        for statement in reversed(self._statements):
            names = statements.bound(statement) if isinstance(statement, _MAKING) else []
            if not names or self.scopes.used_after(statement, names):
                continue
            behind = [statement, *self._behind(statement)]
            taken = [one for each in behind for one in self.accesses(each) if of(one)]
            if taken:
                return statement, taken
        return None

    def merged(self, module: str) -> bool:
        """Does this projection hold several side by side?"""
        return bool(re.search(r"(?:qkv_proj|gate_up_proj|c_attn|query_key_value)$", module))

    def _maker(self, value: ast.expr, hops: int) -> ast.stmt:
        own = self.scopes.statement_of(value)
        if self._reads(value) or not hops:
            return own
        names = self.scopes.names(value)
        made = [self.scopes.makers(name, own) for name in names]
        for statement in (one for each in made for one in reversed(each)):
            inner = statements.value_of(statement)
            if inner is None or (statement.lineno >= own.lineno and inner is value):
                continue
            if self._reads(inner):
                return statement
            if any(isinstance(n, ast.Name) for n in ast.walk(inner)):
                found = self._maker(inner, hops - 1)
                if found is not own:
                    return found
        for name in names:
            helper = self.scopes.helpers.get(name)
            for statement in self.scopes.returns(helper) if helper else ():
                if statement.value is not None:
                    return self._maker(statement.value, hops - 1)
        return next((each[-1] for each in made if each), own)

    def _reads(self, value: ast.expr) -> bool:
        return any(isinstance(n, ast.Attribute) and n.attr in READ for n in ast.walk(value))

    def accesses(self, within: ast.AST | None = None) -> list[Access]:
        """Every value of a module that is named in the function, or in one statement of it."""
        found = []
        for statement in self._statements:
            if within is not None and statement is not within:
                continue
            if hasattr(statement, "body"):
                continue
            parents = {
                child: node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)
            }
            found += [
                self._access(statement, node, parents)
                for node in ast.walk(statement)
                if isinstance(node, ast.Attribute) and node.attr in VALUES
            ]
        return found

    def _access(
        self, statement: ast.stmt, node: ast.Attribute, parents: dict[ast.AST, ast.AST]
    ) -> Access:
        above = parents.get(node)
        index: int | None = None
        whole: ast.expr = node
        if (
            isinstance(above, ast.Subscript)
            and above.value is node
            and isinstance(above.slice, ast.Constant)
            and isinstance(above.slice.value, int)
        ):
            index, whole = above.slice.value, above
        module = self.file.segment(node.value)
        return Access(statement, whole, module, node.attr, index, self.layer(module, statement))

    def layer(self, module: str, near: ast.stmt) -> int | None:
        """The number of the layer that a module's expression names in a statement."""
        match = re.search(r"(?:layers|h)\[(\w+)\]", module)
        root = re.split(r"[.\[]", module, maxsplit=1)[0]
        if match is None:
            for statement in reversed(self.scopes.makers(root, near)):
                value = statements.value_of(statement)
                text = self.file.segment(value) if value is not None else ""
                if ("layers[" in text or ".h[" in text) and statement is not near:
                    return self.layer(text, statement)
            return None
        if match[1].isdigit():
            return int(match[1])
        tree = ast.parse(self.file.text)
        for statement in [*tree.body, *self._statements]:
            bound = isinstance(statement, ast.Assign) and match[1] in statements.bound(statement)
            constant = statements.value_of(statement) if bound else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, int):
                return constant.value
        return None

    def writes(self) -> list[Access]:
        """The statements that change a module's value, in the order of the text."""
        every = self.accesses()
        found = []
        for statement in self._statements:
            target = statements.target(statement)
            call = statements.in_place_within(statement) if target is None else None
            if call is not None:
                target = call.value
            if target is None:
                continue
            inside = [one for one in every if one.statement is statement]
            direct = [one for one in inside if any(n is one.node for n in ast.walk(target))]
            if direct:
                found.append(direct[0])
            elif (
                isinstance(target, (ast.Subscript, ast.Attribute))
                or statements.in_place(statement)
                or (isinstance(target, ast.Name) and self.live(target.id, statement))
            ):
                root = next((n.id for n in ast.walk(target) if isinstance(n, ast.Name)), "")
                made = self.scopes.binding(root, statement)
                loop = self.loop_over(root, statement) if made is None else None
                taken = self.sources(made) if made is not None else self._halves_of(loop)
                found += [
                    Access(statement, one.node, one.module, one.value, one.index, one.layer)
                    for one in taken
                ][:1]
        return found

    def _halves_of(self, loop: ast.For | None) -> list[Access]:
        """The value of a layer that a loop goes over."""
        node = loop.iter if loop is not None else None
        of_a_layer = isinstance(node, ast.Attribute) and node.attr in VALUES
        if loop is None or not isinstance(node, ast.Attribute) or not of_a_layer:
            return []
        return [self._access(loop, node, {})]

    def loop_over(self, name: str, near: ast.stmt) -> ast.For | None:
        """The innermost loop around a statement that gives a variable its value."""
        around = [
            one
            for one in self._statements
            if isinstance(one, ast.For)
            and isinstance(one.target, ast.Name)
            and one.target.id == name
            and any(node is near for node in ast.walk(one))
        ]
        return around[-1] if around else None

    def live(self, name: str, near: ast.stmt) -> bool:
        """Is a variable bound to a module's value as it was read, or to a view of it? What is done
        to it in place is done to the model's own memory then. An adapter gives copies.
        """
        if not self.file.ported:
            return False
        seen: list[ast.stmt] = []
        waiting = [self.scopes.binding(name, near)]
        while waiting:
            made = waiting.pop()
            value = statements.value_of(made) if made is not None else None
            if made is None or value is None or made in seen:
                continue
            seen.append(made)
            if statements.computes(_without_indices(value), self.scopes.helpers, statements.SAME):
                continue
            if self._reads(value):
                return True
            names = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
            waiting += [self.scopes.binding(one, made) for one in names]
        return False

    def sources(self, statement: ast.stmt) -> list[Access]:
        """What of the model a name is made of that a statement binds: directly, or of other names,
        as a view, a copy or a sum of theirs.
        """
        found, waiting = [], [statement]
        seen: list[ast.stmt] = []
        while waiting:
            near = waiting.pop(0)
            value = statements.value_of(near)
            seen.append(near)
            taken = self.accesses(near)
            found += taken
            if taken or value is None or not statements.arranges(value):
                continue
            names = dict.fromkeys(n.id for n in ast.walk(value) if isinstance(n, ast.Name))
            made = (self.scopes.binding(name, near) for name in names)
            waiting += [one for one in made if one is not None and one not in seen + waiting]
        return found

    def halves(self, part: ast.AST, made: ast.stmt) -> dict[str, ast.expr]:
        """Which halves of a pair a part of the function uses that is bound in the statement `made`,
        and not in another one since, by their text.
        """
        target = made.targets[0] if isinstance(made, ast.Assign) else None
        return {
            text: node
            for text, node in statements.halves(part, target).items()
            for name in (one.id for one in ast.walk(node) if isinstance(one, ast.Name))
            if made in self.scopes.makers(name, self.scopes.statement_of(node))
        }

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of methods with these names."""
        return [
            node
            for node in self.scopes.nodes()
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in names
        ]


class _Unindexed(ast.NodeTransformer):
    """An expression without what its indices and keys are computed by."""

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        return self.visit(node.value)


def _without_indices(node: ast.AST) -> ast.AST:
    bare: ast.AST = _Unindexed().visit(copy.deepcopy(node))
    return bare

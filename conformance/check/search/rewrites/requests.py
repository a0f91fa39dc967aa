"""Requests: how a trace begins, how many tokens it generates, and how."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, Statement

#: What is reduced over the prompts of a batch as it is saved: `h = hidden.mean(dim=0).save()`.
_OVER_PROMPTS = re.compile(
    r"^(\s*(\w+) = .*?)(\.(?:mean|sum)\((?:dim=)?0\))\.save\(\)$", flags=re.MULTILINE
)

_BEGIN = frozenset({"trace", "generate"})


def opening_calls(program: Program, root: cst.CSTNode) -> list[cst.Call]:
    """Return the calls that begin a trace in a function, or in another part of the file."""
    return [
        node
        for node in program.walk(root)
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in _BEGIN
    ]


def steps_of_hf(program: Program) -> str:
    """Return the text of how many tokens `hf` generates, "1" where it only traces."""
    if (hf := program.functions.get("hf")) is not None:
        for call in opening_calls(program, hf):
            for arg in call.args:
                if arg.keyword is not None and arg.keyword.value == "max_new_tokens":
                    return program.code(arg.value)
    return "1"


def ask_greedily(program: Program, clues: Clues) -> Iterator[Change]:
    """Generate greedily, and as many tokens as on transformers."""
    steps = steps_of_hf(program)
    calls = [call for function in program.edited for call in opening_calls(program, function)]
    calls = [call for call in calls if not program.code(call.func).startswith("lm.")]
    several = [request(program, call, steps) for call in calls]
    words = "without `temperature=0.0` vLLM draws, and 16 tokens where no number is given"
    changed = [
        (call, text)
        for call, text in zip(calls, several, strict=True)
        if text != program.code(call)
    ]
    for call, text in changed:
        yield Change((program.swap(call, text),), words, 1, anywhere=True)
    if len(changed) > 1:
        all_of_them = tuple(program.swap(call, text) for call, text in changed)
        yield Change(all_of_them, words, 1, anywhere=True)


def request(program: Program, call: cst.Call, steps: str) -> str:
    """Return the text of a call that asks vLLM for so many tokens, greedily."""
    if any(arg.star == "**" for arg in call.args):
        func = re.sub(r"\.generate$", ".trace", program.code(call.func))
        return f"{func}({', '.join(program.code(arg).rstrip().rstrip(',') for arg in call.args)})"
    keep, asked = [], False
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if name in {"do_sample", "temperature", "top_p", "top_k", "seed"}:
            continue
        if name in {"max_new_tokens", "max_tokens"}:
            asked = True
            value = program.code(arg.value)
            keep.append(f"max_tokens={steps if name == 'max_tokens' else value}")
            continue
        keep.append(program.code(arg).rstrip().rstrip(","))
    keep.insert(len(keep) - asked, "temperature=0.0")
    if not asked:
        keep.append(f"max_tokens={steps}")
    func = re.sub(r"\.generate$", ".trace", program.code(call.func))
    return f"{func}({', '.join(keep)})"


def complete_options(program: Program, clues: Clues) -> Iterator[Change]:
    """Add `temperature=0.0` to a dict of options that is given to a request."""
    words = "without `temperature=0.0` vLLM draws"
    for node in program.walk(program.module):
        made = isinstance(node, cst.Call) and program.code(node.func) == "dict"
        if not (made or isinstance(node, cst.Dict)):
            continue
        text = program.code(node)
        if "max_tokens" in text and "temperature" not in text:
            body = text[:-1].rstrip().rstrip(",")
            change = f"{body}, temperature=0.0)" if made else f'{body}, "temperature": 0.0}}'
            yield Change((program.swap(node, change),), words, 1, anywhere=True)


def move_into_loop(program: Program, clues: Clues) -> Iterator[Change]:
    """Put a statement that stands before a loop over the steps into it."""
    for statement in program.statements:
        node = statement.node
        if not isinstance(node, cst.For) or not re.search(r"\.(iter|all)\b", statement.text):
            continue
        for before in _before(program, node)[:3]:
            line = before.text
            change = (program.without(before), program.inside(statement, *line.split("\n")))
            yield Change(change, "in every step, not in the first alone", 3, anywhere=True)


def _before(program: Program, node: cst.For) -> list[Statement]:
    parent = program.parents.get(node)
    if not isinstance(parent, cst.IndentedBlock):
        return []
    siblings = list(parent.body)
    earlier = siblings[: siblings.index(node)]
    found = [program.statement_of(one) for one in reversed(earlier)]
    return [one for one in found if one and isinstance(one.node, cst.SimpleStatementLine)]


def bound_steps(program: Program, clues: Clues) -> Iterator[Change]:
    """Loop over as many steps as are generated: code after an endless loop does not run."""
    steps = _steps(program)
    for node in program.expressions(cst.For):
        text = program.code(node.iter)
        tracer = re.match(r"(\w+)\.(?:all\(\)|iter\b)", text)
        if not tracer:
            continue
        for bound in dict.fromkeys((*steps, steps_of_hf(program))):
            for iterated in (f"{tracer[1]}.iter[:{bound}]", f"{tracer[1]}.iter[1:{bound}]"):
                if iterated != text:
                    change = (program.swap(node.iter, iterated),)
                    yield Change(change, "loop over the steps that there are", 2, anywhere=True)


def _steps(program: Program) -> list[str]:
    """Return what the calls of the edited functions say of the number of tokens."""
    names = {"max_tokens", "max_new_tokens", "steps"}
    return [
        program.code(arg.value)
        for function in program.edited
        for call in opening_calls(program, function)
        for arg in call.args
        if arg.keyword is not None and arg.keyword.value in names
    ]


def trace_each_prompt(
    program: Program, clues: Clues, *, together: bool = False
) -> Iterator[Change]:
    """Trace the prompts of a batch one after the other, and join what each gives: each batch by
    itself, or all of them `together`.
    """
    words = "on vLLM a trace, or an invoke, takes one prompt"
    for join in ("torch.cat", "torch.stack"):
        splices = [
            program.swap(statement.node, _each_prompt(program, statement, call, join))
            for statement, call in _batches(program, sure=together)
        ]
        added = program.importing("torch")
        if together and splices:
            yield Change((*splices, *added), words, 3, anywhere=True)
        elif not together:
            yield from (Change((one, *added), words, 3, anywhere=True) for one in splices)


def _batches(program: Program, *, sure: bool) -> Iterator[tuple[Statement, cst.Call]]:
    """Yield the traces, and the invokes of a trace that has nothing else in it, that are given
    several prompts, with the call that they begin with: for `sure`, or as far as can be told.
    """
    wanted = (True,) if sure else (True, None)
    openers = {call for function in program.edited for call in opening_calls(program, function)}
    for statement in program.statements:
        node = statement.node
        call = node.items[0].item if isinstance(node, cst.With) and len(node.items) == 1 else None
        if not isinstance(node, cst.With) or not isinstance(call, cst.Call):
            continue
        if call not in openers:
            continue
        given = [arg for arg in call.args if arg.keyword is None and not arg.star]
        invokes = [] if given else _invokes(program, node)
        blocks = [node] if len(given) == 1 else invokes
        if any(_saved(program.code(one)) for one in blocks) and any(
            _is_list(program, cst.ensure_type(one.items[0].item, cst.Call)) in wanted
            for one in blocks
        ):
            yield statement, call


def _invokes(program: Program, node: cst.CSTNode) -> list[cst.With]:
    """The invokes of a trace, none where it has other statements."""
    body = list(node.body.body)  # type: ignore[attr-defined]
    found = [
        one for one in body if isinstance(one, cst.With) and _is_invoke(program, one.items[0].item)
    ]
    return found if len(found) == len(body) else []


def _is_invoke(program: Program, node: cst.BaseExpression) -> bool:
    """Whether it is an invoke that is given a prompt, or a list of them."""
    if not isinstance(node, cst.Call) or not program.code(node.func).endswith(".invoke"):
        return False
    return len([arg for arg in node.args if arg.keyword is None and not arg.star]) == 1


def _saved(text: str) -> list[str]:
    return re.findall(r"^\s*(\w+) = .*\.save\(\)", text, flags=re.MULTILINE)


def _each_prompt(program: Program, statement: Statement, call: cst.Call, join: str) -> str:
    """Return the text of a trace, or of its invokes, as loops over the prompts."""
    options = [program.code(arg).rstrip().rstrip(",") for arg in call.args if arg.keyword]
    func = program.code(call.func)
    lines: list[str] = []
    whole: Any = statement.node
    for block in _invokes(program, whole) or [whole]:
        opening: Any = block.items[0].item
        prompts = next(program.code(a.value) for a in opening.args if a.keyword is None)
        body = program.code(block.body).strip("\n").rstrip()
        first = program.statement_of(block.body.body[0])
        begin = "" if body.startswith(" ") or first is None else first.indent
        inner = textwrap.dedent(begin + body)
        bound = block.items[0].asname
        name = f" as {program.code(bound.name)}" if bound is not None else ""
        saved = _saved(inner)
        single = _is_list(program, opening) is False
        over: dict[str, str] = {}
        if not single:
            over = {found[2]: found[3] for found in _OVER_PROMPTS.finditer(inner)}
            inner = _OVER_PROMPTS.sub(r"\1.save()", inner)
        begin = "" if single else "    "
        if not single:
            lines += [*(f"{one}_of = []" for one in saved), f"for prompt in {prompts}:"]
        given = prompts if single else "prompt"
        lines.append(f"{begin}with {func}({', '.join([given, *options])}){name}:")
        lines += [f"{begin}    {line}" if line.strip() else line for line in inner.split("\n")]
        if not single:
            lines += [f"    {one}_of.append({one})" for one in saved]
            lines += [f"{one} = {join}({one}_of){over.get(one, '')}" for one in saved]
    return _indented(lines, statement.indent)


def _is_list(program: Program, call: cst.Call) -> bool | None:
    """Whether a call is given a list of prompts: None where the file does not say."""
    value = next(arg.value for arg in call.args if arg.keyword is None)
    if isinstance(value, cst.Name):
        for line in program.module.body:
            for one in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                if isinstance(one, cst.Assign) and _names(program, one) == [program.code(value)]:
                    value = one.value
                    break
    if isinstance(value, (cst.List, cst.Tuple, cst.ListComp)):
        return True
    return False if isinstance(value, cst.BaseString) else None


def _names(program: Program, assign: cst.Assign) -> list[str]:
    return [program.code(one.target) for one in assign.targets]


def _indented(lines: list[str], indent: str) -> str:
    """Return lines as the text of a statement whose first line stands where it did."""
    first, *rest = lines
    return "\n".join([first, *(indent + line if line.strip() else line for line in rest)])

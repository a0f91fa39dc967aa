"""Requests: how a trace begins, how many tokens it generates, and how."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, Statement

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


def trace_each_prompt(program: Program, clues: Clues) -> Iterator[Change]:
    """Trace the prompts of a batch one after the other, and stack what each gives."""
    words = "on vLLM a trace, or an invoke, takes one prompt"
    for statement in program.statements:
        node = statement.node
        if not isinstance(node, cst.With) or len(node.items) != 1:
            continue
        call = node.items[0].item
        if not isinstance(call, cst.Call) or call not in _openers(program):
            continue
        given = [arg for arg in call.args if arg.keyword is None]
        if len(given) != 1:
            continue
        prompts = program.code(given[0].value)
        saved = re.findall(r"^\s*(\w+) = .*\.save\(\)", program.code(node), flags=re.MULTILINE)
        if not saved:
            continue
        start, end = program.span(node)
        body = program.text.encode()[start:end].decode().rstrip()
        one = body.replace(prompts, "prompt", 1)
        indent = statement.indent
        lines = [f"{name}_of = []" for name in saved]
        lines.append(f"for prompt in {prompts}:")
        lines += [f"    {line.removeprefix(indent)}" for line in one.split("\n")]
        lines += [f"{'    '}{name}_of.append({name})" for name in saved]
        for join in ("torch.cat", "torch.stack"):
            tail = [f"{name} = {join}({name}_of)" for name in saved]
            text = _indented([*lines, *tail], indent)
            change = (program.swap(node, text), *program.importing("torch"))
            yield Change(change, words, 3, anywhere=True)


def _openers(program: Program) -> set[cst.Call]:
    return {call for function in program.edited for call in opening_calls(program, function)}


def _indented(lines: list[str], indent: str) -> str:
    """Return lines as the text of a statement whose first line stands where it did."""
    first, *rest = lines
    return "\n".join([first, *(indent + line if line.strip() else line for line in rest)])

"""Rewrites of requests: a trace's options, the number of its steps, and its prompts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import libcst as cst
from libcst import matchers as m

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import ParsedFile, Statement

#: A saved value that is reduced over a batch's prompts: `h = hidden.mean(dim=0).save()`.
_OVER_PROMPTS = re.compile(
    r"^(\s*(\w+) = .*?)(\.(?:mean|sum)\((?:dim=)?0\))\.save\(\)$", flags=re.MULTILINE
)

#: The sampling options of transformers and vLLM.
_DRAWING = frozenset({"do_sample", "temperature", "top_p", "top_k", "seed"})


def opening_calls(program: ParsedFile, root: cst.CSTNode) -> list[cst.Call]:
    """Return the calls that begin a trace in a function or in another node."""
    begins = m.Call(func=m.Attribute(attr=m.Name("trace") | m.Name("generate")))
    return [
        one for one in program.walk(root) if isinstance(one, cst.Call) and m.matches(one, begins)
    ]


def _options(program: ParsedFile, functions: Iterable[cst.FunctionDef], *names: str) -> list[str]:
    """Return the values of the named options in the calls that begin traces, as text."""
    return [
        program.code(arg.value)
        for function in functions
        for call in opening_calls(program, function)
        for arg in call.args
        if arg.keyword is not None and arg.keyword.value in names
    ]


def steps_of_hf(program: ParsedFile) -> str:
    """Return the number of tokens that `hf` generates as text, "1" if it generates none."""
    hf = [function for name, function in program.functions.items() if name == "hf"]
    return next(iter(_options(program, hf, "max_new_tokens")), "1")


def ask_greedily(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Generate greedily, and the same number of tokens as on transformers."""
    words = "without `temperature=0.0` vLLM draws, and 16 tokens where no number is given"
    steps = steps_of_hf(program)
    calls = [call for function in program.edited for call in opening_calls(program, function)]
    changed = [
        program.swap(call, request(program, call, steps))
        for call in calls
        if not program.code(call.func).startswith("lm.")
    ]
    for one in changed:
        yield change(1, words, one, anywhere=True)
    if len(changed) > 1:
        yield change(1, words, *changed, anywhere=True)


def request(program: ParsedFile, call: cst.Call, steps: str) -> str:
    """Return the text of a call for greedy generation of `steps` tokens on vLLM. `**options`, if
    passed on, set the number instead.
    """
    func = re.sub(r"\.generate$", ".trace", program.code(call.func))
    kept, greedy = [], ["temperature=0.0", f"max_tokens={steps}"]
    for arg in call.args:
        name, text = arg.keyword.value if arg.keyword else "", _text(program, arg)
        if arg.star == "**":
            greedy = greedy[:1]
        if name == "max_new_tokens":
            greedy[1:] = [f"max_tokens={program.code(arg.value)}"]
        elif name not in {*_DRAWING, "max_tokens"} or not greedy:
            kept.append(text)
    return f"{func}({', '.join([*kept, *greedy])})"


def _text(program: ParsedFile, arg: cst.Arg) -> str:
    return program.code(arg).rstrip().rstrip(",")


def bound_steps(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Bound a loop to the generated steps: code after an unbounded loop does not run."""
    words = "loop over the steps that there are"
    said = _options(program, program.edited, "max_tokens", "max_new_tokens", "steps")
    for node in program.expressions(cst.For):
        if tracer := re.match(r"(\w+)\.(?:all\(\)|iter\b)", program.code(node.iter)):
            for bound in dict.fromkeys((*said, steps_of_hf(program))):
                for steps in (f"{tracer[1]}.iter[:{bound}]", f"{tracer[1]}.iter[1:{bound}]"):
                    yield change(2, words, program.swap(node.iter, steps), anywhere=True)


def trace_each_prompt(
    program: ParsedFile, clues: Clues, *, together: bool = False
) -> Iterator[Change]:
    """Trace each prompt of a batch separately and join the values, for one batch or all of them
    `together`.
    """
    words = "on vLLM a trace, or an invoke, takes one prompt"
    added = program.importing("torch")
    for join in ("torch.cat", "torch.stack"):
        splices = [
            program.swap(statement.node, _each_prompt(program, statement, blocks, join))
            for statement, blocks in _batches(program, sure=together)
        ]
        if together and splices:
            yield change(3, words, *splices, *added, anywhere=True)
        elif not together:
            yield from (change(3, words, one, *added, anywhere=True) for one in splices)


def _batches(program: ParsedFile, *, sure: bool) -> Iterator[tuple[Statement, list[Any]]]:
    """Yield the traces with several prompts, and the blocks that take them: the trace itself or its
    invokes. With `sure`, leave out those that may have only one prompt.
    """
    for statement in program.statements:
        node: Any = statement.node
        if not (isinstance(node, cst.With) and opening_calls(program, node.items[0].item)):
            continue
        blocks: list[Any] = [node]
        if not _prompts(node):
            blocks = list(node.body.body)
            if not all(isinstance(one, cst.With) and _prompts(one) for one in blocks):
                continue
        wanted = (True,) if sure else (True, None)
        if any(_saved(program.code(one)) for one in blocks) and any(
            _is_list(program, one) in wanted for one in blocks
        ):
            yield statement, blocks


def _prompts(block: cst.With) -> list[cst.BaseExpression]:
    """Return the positional arguments of a trace or an invoke."""
    call = block.items[0].item
    args = call.args if isinstance(call, cst.Call) else ()
    return [arg.value for arg in args if arg.keyword is None and not arg.star]


def _saved(text: str) -> list[str]:
    return re.findall(r"^\s*(\w+) = .*\.save\(\)", text, flags=re.MULTILINE)


def _each_prompt(program: ParsedFile, statement: Statement, blocks: list[Any], join: str) -> str:
    """Return the text of a trace or its invokes, rewritten as loops over the prompts."""
    opening = cst.ensure_type(statement.node, cst.With).items[0].item
    call = cst.ensure_type(opening, cst.Call)
    options = [_text(program, arg) for arg in call.args if arg.keyword]
    lines: list[str] = []
    for block in blocks:
        prompts = program.code(_prompts(block)[0])
        first = program.statement_of(block.body.body[0])
        body = program.code(block.body).strip("\n").rstrip()
        indent = first.indent if first and not body.startswith(" ") else ""
        inner = textwrap.dedent(indent + body)
        bound = block.items[0].asname
        name = f" as {program.code(bound.name)}" if bound is not None else ""
        if _is_list(program, block) is False:
            opened = f"with {program.code(call.func)}({', '.join([prompts, *options])}){name}:"
            lines += [opened, *textwrap.indent(inner, "    ").split("\n")]
            continue
        over = {found[2]: found[3] for found in _OVER_PROMPTS.finditer(inner)}
        inner = textwrap.indent(_OVER_PROMPTS.sub(r"\1.save()", inner), " " * 8)
        saved = _saved(inner)
        lines += [f"{one}_of = []" for one in saved]
        lines += [
            f"for prompt in {prompts}:",
            f"    with {program.code(call.func)}({', '.join(['prompt', *options])}){name}:",
            *inner.split("\n"),
            *(f"    {one}_of.append({one})" for one in saved),
            *(f"{one} = {join}({one}_of){over.get(one, '')}" for one in saved),
        ]
    return textwrap.indent("\n".join(lines), statement.indent).lstrip()


def _is_list(program: ParsedFile, block: cst.With) -> bool | None:
    """Return whether a block takes a list of prompts, None if the file does not show it."""
    value: cst.CSTNode = _prompts(block)[0]
    if isinstance(value, cst.Name):
        of_name = m.Assign(targets=[m.AssignTarget(target=m.Name(value.value))])
        lines = [one for one in program.module.body if isinstance(one, cst.SimpleStatementLine)]
        made = [one.value for line in lines for one in line.body if m.matches(one, of_name)]  # type: ignore[attr-defined]
        value = next(iter(made), value)
    if isinstance(value, (cst.List, cst.Tuple, cst.ListComp)):
        return True
    return False if isinstance(value, cst.BaseString) else None

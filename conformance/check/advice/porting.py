"""A file with `hf(model)` alone: which of its lines cannot run on vLLM, and what they become.

Found in the text only: nothing of it is run, and what is not sure is said to be so.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.check.advice.edits import Edit, replaced
from conformance.check.advice.errors import weights
from conformance.check.advice.reads import batch_axis
from conformance.check.parsing import bound_values, containers, module_values, statements
from conformance.check.parsing.activation_names import activations
from conformance.check.parsing.bound_values import Bound
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.scopes import Scopes
from conformance.check.parsing.source import UserFile
from conformance.errors import ConformanceError

_Mend = Callable[[str], str]


@dataclass(frozen=True)
class Rule:
    """A pattern of a line, why that is another thing on vLLM, and the line as it is there.

    A rule without `mend` has no other side: it cannot be ported.
    """

    pattern: str
    why: str
    mend: _Mend | None = None


def _generate(line: str) -> str:
    line = re.sub(r"\.generate\(", ".trace(", line)
    line = re.sub(r"\bmax_new_tokens\b", "max_tokens", line)
    line = re.sub(r",\s*do_sample\s*=\s*False", "", line)
    return line if "temperature" in line else _asking(line, "temperature=0.0")


def _one_step(line: str) -> str:
    """A trace of one forward is a generation of one token there."""
    if "temperature" in line or "max_tokens" in line:
        return line
    return _asking(line, "temperature=0.0, max_tokens=1")


def _asking(line: str, keywords: str) -> str:
    """The call that opens a block, with these keywords as well."""
    line = re.sub(r"(?<!\()\)(\s*(?:as \w+)?:)", rf", {keywords})\1", line)
    return re.sub(r"\(\)(\s*(?:as \w+)?:)", rf"({keywords})\1", line)


#: The last token's logits, by the indices that take it of [1, tokens, vocabulary].
_LAST = r"(?:\[:, -1(?:, :)?\]|\[0, -1(?:, :)?\]|\[0\]\[-1\])"
_HEADS = r"\.(?:lm_head|embed_out)$"
_LOGITS = r"\.(?:(?:lm_head|embed_out)\.output|output\.logits)"


def _head(line: str) -> str:
    line = re.sub(rf"{_LOGITS}\[:, -1(?:, :)?\]", ".logits", line)
    return re.sub(rf"{_LOGITS}(?:\[0, -1(?:, :)?\]|\[0\]\[-1\])", ".logits[-1]", line)


def _called_head(line: str) -> str:
    """A call of the head as the product with its weights."""
    indent, text = line[: len(line) - len(line.lstrip())], line.strip()
    node = statements.only_statement(text)
    for call in ast.walk(node) if node is not None else ():
        if not isinstance(call, ast.Call) or not re.search(_HEADS, ast.unparse(call.func)):
            continue
        if len(call.args) == 1 and not call.keywords:
            given, head = (ast.get_source_segment(text, n) for n in (call.args[0], call.func))
            product = f"torch.nn.functional.linear({given}, {head}.weight)"
            return indent + statements.with_node(text, call, product)
    return line


RULES = (
    Rule(
        rf"{_HEADS[:-1]}\(",
        "vLLM's head is not to be called: multiply by its weights",
        _called_head,
    ),
    Rule(
        r"\.backward\(|\.grad\b|requires_grad|retain_grad",
        "vLLM computes no gradients: attribute by differences of forwards",
    ),
    Rule(
        r"self_attn\.output\[1\]|attn_weights|output_attentions|\.attentions",
        "vLLM's kernels do not keep attention probabilities",
    ),
    Rule(
        r"\.[qkv]_proj\.",
        "vLLM merges query, key and value into `qkv_proj`, which returns (all of them side by "
        "side, bias): take columns of `qkv_proj.output[0]`",
    ),
    Rule(
        r"\.(?:gate|up)_proj\.",
        "vLLM merges gate and up into `gate_up_proj`, which returns (both side by side, bias): "
        "take columns of `gate_up_proj.output[0]`",
    ),
    Rule(
        r"\.act_fn\.",
        "vLLM's activation takes gate and up and returns their product",
    ),
    Rule(
        r"\.source\b",
        "vLLM's modules run other code: what `.source` names is not there",
    ),
    Rule(
        r"\.inputs\b",
        "what a module is given there are other arguments in another order, [tokens, width] each, "
        "an axis less: this line is yours to decide",
    ),
    Rule(
        r"\.generator\.output|\btracer\.result|\.streamer\.",
        "vLLM gives the token of each step as `model.samples`, and its own output as "
        "`tracer.result.outputs[0].token_ids`",
    ),
    Rule(
        r"\.barrier\(|^\s*barrier\(\)",
        "on vLLM no value goes from one invoke to another: run two traces, of which the first "
        "saves what the second uses",
    ),
    Rule(
        r"\.(?:trace|invoke|generate)\((?:\[|[A-Za-z_]*(?:PROMPTS|TEXTS|prompts|texts)\b(?!\[))",
        "on vLLM a trace takes one prompt, or an invoke does: a trace for each, or an invoke for "
        "each in one trace",
    ),
    Rule(
        r"\.generate\(|max_new_tokens",
        "on vLLM a generation is a trace with max_tokens; without temperature=0.0 it draws",
        _generate,
    ),
    Rule(
        r"\.trace\(",
        "without temperature=0.0 vLLM draws, and generates 16 tokens",
        _one_step,
    ),
    Rule(
        rf"{_LOGITS}(?!{_LAST})",
        "the head is no module that runs there, and of all tokens but the last there are no logits",
    ),
    Rule(
        _LOGITS,
        "the head is no module that runs there: `model.logits` has the last token's logits",
        _head,
    ),
)


@dataclass(frozen=True)
class Port:
    """The lines of `hf` that are another thing on vLLM, and a first `vllm(model)`, "" where some
    line has no other side.
    """

    lines: tuple[Edit, ...]
    suggestion: str


def require_both_sides(files: Sequence[UserFile]) -> None:
    """Raises ConformanceError for a file with `hf(model)` alone: with what is another thing on
    vLLM, line by line, and a first other side where there is one.
    """
    for file in files:
        if not file.ported or "vllm" in file.functions:
            continue
        found = port(file)
        lines = [
            f"  line {one.line}: {one.before.strip()}\n      {one.why}"
            + (f"\n      there: {one.after.strip()}" if one.after else "")
            for one in found.lines
        ]
        told = "\n".join(lines) or "  nothing that is known to be another thing there"
        remedy = "write `vllm(model)`, which returns the same names"
        if found.suggestion:
            indented = textwrap.indent(found.suggestion, "      ")
            remedy = f"look this over, and add it:\n{indented}"
        raise ConformanceError(
            f"has `hf(model)` and no `vllm(model)`. On vLLM these lines are another thing:\n{told}",
            path=file.path,
            line=file.functions["hf"].lineno,
            remedy=remedy,
        )


def port(file: UserFile) -> Port:
    """What `hf(model)` becomes, line by line."""
    function = file.functions["hf"]
    filled = {one.made: one for one in containers.containers(function)}
    moved = {one.first: one for one in filled.values() if one.first}
    theirs = Places(file, "hf", dual=False)
    every = theirs.scopes
    unsure = activations(every, batch_axis.of_one_prompt(theirs))
    held = bound_values.bound(function, unsure)
    flat, unclear = _without_batch(theirs, held)
    decided = unclear | _to_decide(theirs)
    found, suggested = [], []
    possible = all(one.first for one in filled.values())
    for number in range(function.lineno, (function.end_lineno or function.lineno) + 1):
        line = file.line(number)
        if number in filled:
            found.append(Edit(number, line, filled[number].there, filled[number].why))
            continue
        after, reasons, known = _ported(flat.get(number, line), held)
        if number in flat:
            reasons = list(dict.fromkeys([*reasons, module_values.NO_BATCH]))
        if number in decided:
            after, reasons, known = line, [decided[number], *reasons], False
        possible = possible and known
        if reasons:
            found.append(Edit(number, line, after if after != line else "", "; ".join(reasons)))
        if number in moved:
            indent = line[: len(line) - len(line.lstrip())]
            suggested.append(f"{indent}{moved[number].there}")
        suggested.append(after.replace("def hf(", "def vllm(", 1))
    helpers = list(_of_helpers(file, every, unsure, decided, flat))
    possible = possible and not helpers
    return Port((*found, *helpers), "\n".join(suggested) if possible else "")


def _without_batch(theirs: Places, held: Bound) -> tuple[dict[int, str], dict[int, str]]:
    """The lines that index a batch of what is made of a module's value, without that; and those of
    which it is not known what they become, with the reason.
    """
    flat: dict[int, str] = {}
    unclear: dict[int, str] = {}
    helpers = [bound_values.bound(one) for one in theirs.scopes.helpers.values()]
    values = {name for each in (held, *helpers) for name in each.values}
    for node, text in batch_axis.made_indices(theirs, values):
        after = replaced(theirs, node, text) if text is not None else ""
        if after and node.lineno not in flat:
            flat[node.lineno] = after
        else:
            unclear[node.lineno] = bound_values.BATCH
    unchanged = {line for line, after in flat.items() if after == theirs.file.line(line)}
    return {line: after for line, after in flat.items() if line not in unchanged}, unclear


def _to_decide(theirs: Places) -> dict[int, str]:
    """The lines of `hf` and its helpers of which the text does not say what they become, and why:
    nothing is guessed.
    """
    found = {
        line: (
            f"axis {axis} is another one there: activations are [tokens, width], an axis less. "
            "This line is yours to decide"
        )
        for line, axis in batch_axis.axes(theirs).items()
    }
    return found | {edit.line: weights.INSIDE for _, edit in weights.outside(theirs)}


def _of_helpers(
    file: UserFile,
    every: Scopes,
    unsure: frozenset[str],
    decided: Mapping[int, str],
    flat: Mapping[int, str],
) -> Iterator[Edit]:
    """The lines of the file's helpers that are another thing there."""
    for helper in every.roots[1:]:
        held = Bound(activations=unsure)
        if isinstance(helper, ast.FunctionDef):
            held = bound_values.bound(helper, unsure)
        for number in range(helper.lineno, (helper.end_lineno or helper.lineno) + 1):
            line = file.line(number)
            after, reasons, _ = _ported(flat.get(number, line), held)
            if number in flat:
                reasons = list(dict.fromkeys([*reasons, module_values.NO_BATCH]))
            if number in decided:
                after, reasons = line, [decided[number], *reasons]
            if reasons:
                yield Edit(number, line, after if after != line else "", "; ".join(reasons))


def _ported(line: str, held: Bound) -> tuple[str, list[str], bool]:
    """A line as it is there, why, and whether it has another side at all."""
    after = line
    reasons: list[str] = []
    for rule in RULES:
        if not re.search(rule.pattern, after):
            continue
        if rule.mend is None:
            return line, [rule.why], False
        mended = rule.mend(after)
        if mended != after:
            after = mended
            reasons.append(rule.why)
    after, told, known = _values(after, held.layers)
    if not told:
        after, told, known = held.ported(after)
    after = statements.still_in_place(line, after)
    if known and after == line:
        return line, [], True  # it takes everything, here and there
    return after, [*reasons, *told], known


def _values(line: str, layers: Collection[str]) -> tuple[str, list[str], bool]:
    """The line with each module's value as it is there, why, and whether all of it is known."""
    found = module_values.values(line, layers)
    known = all(value.after for value in found)
    changed = module_values.written(line, layers)
    if changed is not None:
        return changed[0], [changed[1]], known
    for value in found:
        if value.after:
            line = line.replace(value.before, value.after, 1)
    return line, list(dict.fromkeys(value.why for value in found)), known

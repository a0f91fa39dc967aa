"""A file with `hf(model)` alone: which of its lines cannot run on vLLM, and what they become.

Found in the text only: nothing of it is run, and what is not sure is said to be so.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.check.edits import Edit
from conformance.check.source import UserFile
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
    return (
        line
        if "temperature" in line
        else re.sub(r"\)(\s*(?:as \w+)?:)", r", temperature=0.0)\1", line)
    )


def _one_step(line: str) -> str:
    """A trace of one forward is a generation of one token there."""
    if "temperature" in line or "max_tokens" in line:
        return line
    return re.sub(r"\)(\s*(?:as \w+)?:)", r", temperature=0.0, max_tokens=1)\1", line)


def _head(line: str) -> str:
    line = re.sub(r"\.(?:lm_head|embed_out)\.output(\[:, -1(?:, :)?\])?", ".logits", line)
    return re.sub(r"\.output\.logits(\[:, -1(?:, :)?\])?", ".logits", line)


_LAYER_OUTPUT = re.compile(
    r"([\w.]*(?:layers|\.h)\[[^\]]+\]|\blayer)\.output(?:\[0\])?"
    r"(?P<rows>\[0\]|\[(?::|0), (?P<rest>[^\],]+)\])?(?!\[)"
)


def _stream(line: str) -> str:
    """A read of a layer's output: the sum of its two parts, without the batch axis."""

    def summed(match: re.Match[str]) -> str:
        rest = match["rest"]
        return f"({match[1]}.output[0] + {match[1]}.output[1])" + (f"[{rest}]" if rest else "")

    return _LAYER_OUTPUT.sub(summed, line)


def _merged(line: str) -> str:
    return re.sub(
        r"\.(?:gate_proj|up_proj)\.",
        ".gate_up_proj.",
        re.sub(r"\.[qkv]_proj\.", ".qkv_proj.", line),
    )


RULES = (
    Rule(
        r"\.backward\(|\.grad\b|requires_grad|retain_grad",
        "vLLM computes no gradients: attribute by differences of forwards",
    ),
    Rule(
        r"self_attn\.output\[1\]|attn_weights|output_attentions|\.attentions",
        "vLLM's kernels do not keep attention probabilities",
    ),
    Rule(
        r"\.[qkv]_proj\.|\.(?:gate|up)_proj\.",
        "vLLM merges these projections: the output is (all of them side by side, bias)",
        _merged,
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
        r"lm_head\.output|embed_out\.output|\.output\.logits",
        "the head is no module that runs there: `model.logits` has the last token's logits",
        _head,
    ),
    Rule(
        r"(?:layers|\.h)\[[^\]]+\]\.output|\blayer\.output",
        "Llama's layers there return (MLP output, residual), [tokens, width] each: the stream is "
        "their sum. Other families return one tensor",
        _stream,
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
    found, suggested, possible = [], [], True
    for number in range(function.lineno, (function.end_lineno or function.lineno) + 1):
        line = file.line(number)
        after = line
        reasons = []
        for rule in RULES:
            if not re.search(rule.pattern, after):
                continue
            if rule.mend is None:
                possible = False
                reasons = [rule.why]
                after = line
                break
            mended = rule.mend(after)
            if _writes(line) and rule.mend is _stream:
                reasons.append(f"{rule.why}. A write must reach both of them")
                possible = False
            elif mended != after:
                after = mended
                reasons.append(rule.why)
        if reasons:
            found.append(Edit(number, line, after if after != line else "", "; ".join(reasons)))
        suggested.append(after.replace("def hf(", "def vllm(", 1))
    return Port(tuple(found), "\n".join(suggested) if possible else "")


def _writes(line: str) -> bool:
    """Is a module's value changed in this line?"""
    return bool(re.search(r"\.output[^=!<>]*(?<![=!<>])[-+*/]?=(?!=)", line)) and not re.match(
        r"\s*\w+\s*=", line
    )

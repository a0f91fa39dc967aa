"""Explain an engine's error to a user who ports a trace, and find the line that raised it."""

from __future__ import annotations

import ast
import re

from conformance.spec.records import Outcome, Status

#: The attributes of the adapter's objects, by the class named in an AttributeError.
ADAPTER = {
    r"(?:HF|VLLM|Served|Async)Model": (
        "`lm`",
        "trace, layers, embedding, norm, logits, token, tokenizer, lens(rows), direction(i)",
    ),
    r"(?:Padded|Traced)Layer": ("a layer of `lm`", "stream, input, attention, mlp"),
    r"Layers": ("`lm.layers`", "an index, a slice, len(), a loop"),
    r"Part": ("a part of `lm`", "input, output, live"),
}

#: A pattern for the error's text, and its explanation. The first match counts.
MEANINGS = {
    r"does not require grad|no grad|backward|requires_grad|inference tensor|\.grad\b": (
        "vLLM computes under inference mode: there are no gradients. Attribute by differences "
        "of forwards instead, or keep this on transformers"
    ),
    r"UnboundLocalError|NameError: name|cannot access local variable": (
        "nothing of a block is left after it but what `.save()` kept, and code after a loop "
        "without an end, `tracer.all()`, does not run: bound the loop, `tracer.iter[:N]`, or "
        "save inside of it"
    ),
    r"attn_weights|attentions|output_attentions": "vLLM does not keep attention probabilities",
    r"too many indices for tensor of dimension 2": (
        "an index too many: on vLLM there is no batch axis, activations are [tokens, width]. What "
        "a layer of this transformers returns is the stream itself, [batch, tokens, width], and "
        "`output[0]` is its first prompt's"
    ),
    r"OutOfOrderError|already ran past it": (
        "a block takes values in the order in which the model computes them: this one comes "
        "before what was taken above it"
    ),
    r"tracer\.barrier": (
        "on vLLM no value goes from one invoke to another: run two traces, and save in the first "
        "what the second uses"
    ),
    r"Multiple prompts per invoke": (
        "on vLLM a trace takes one prompt, or an invoke does: make a trace for each, or an "
        "invoke for each in one trace"
    ),
    r"can't allocate memory|MemoryError|bad_alloc|[Oo]ut of memory|Cannot allocate memory": (
        "it takes more memory than a trace may, which is half of what is free and at most "
        "16 GiB. If it needs more, allow it: --memory GIB"
    ),
}


def explain_error(outcome: Outcome) -> str:
    """Return an outcome's error and, if known, an explanation for a user who ports a trace."""
    first = outcome.reason.strip().partition("\n")[0]
    reason = re.sub(r"^(\w+): \1: ", r"\1: ", first)
    for kind, (what, words) in ADAPTER.items():
        if absent := re.search(rf"'{kind}' object has no attribute '(\w+)'", reason):
            return (
                f"{what} has no `{absent[1]}`; it has: {words}. Every module of the model is "
                "reached by two functions, `hf(model)` and `vllm(model)`, instead of `trace(lm)`"
            )
    last = "\n".join([reason, *outcome.detail.strip().splitlines()[-3:]])
    meaning = next((words for pattern, words in MEANINGS.items() if re.search(pattern, last)), "")
    return f"{reason} ({meaning})" if meaning else reason


def find_lines(outcome: Outcome, text: str, name: str) -> tuple[int, ...]:
    """Return the lines of the file called `name` that an outcome names, the innermost first.

    A worker that hung has printed its stacks, in which the innermost frame comes first. nnsight
    regenerates a block from its syntax tree: one line for each statement, without comments.
    """
    detail = f"{outcome.reason}\n{outcome.detail}"
    if outcome.status is Status.TIMEOUT:
        place = rf'(?:[^"]*{re.escape(name)}|<(?:edit|nnsight)[^">]*>)'
        numbers = map(int, re.findall(rf'File "{place}", line (\d+) in ', detail))
        return tuple(number for number in numbers if number <= text.count("\n") + 1)

    def bare(line: str) -> str:
        return line.partition("#")[0].strip()

    shown = [(number, bare(line)) for number, line in enumerate(text.splitlines(), 1)]
    shown += [
        (node.lineno, bare(ast.unparse(node).partition("\n")[0]))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
    ]
    place = rf'(?:[^"]*{re.escape(name)}|<[^">]+>)'
    frames = re.findall(rf'File "{place}", line (\d+), in [^\n]+\n *([^\n]*)', detail)
    found: dict[int, None] = {}
    for number, words in reversed(frames):
        if alike := [line for line, one in shown if one and one == bare(words)]:
            found[min((abs(line - int(number)), line) for line in alike)[1]] = None
    return tuple(found)

"""What an error's words mean to somebody who ports a trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

#: Where the families that people write for have their layers.
LAYER_LISTS = frozenset(
    {
        "model.layers",
        "transformer.h",
        "transformer.blocks",
        "gpt_neox.layers",
        "model.decoder.layers",
    }
)

#: How code fails that uses a list or a dict into which a block's values have not come back.
EMPTY = (
    r"empty mapping|non-empty TensorList|non-empty list|KeyError|list index out of range|"
    r"is an empty sequence|iterable argument is empty"
)

#: What a trace on the adapter may name, by the class that is asked for another thing.
ADAPTER: tuple[tuple[str, str, str], ...] = (
    (
        r"(?:HF|VLLM|Served|Async)Model",
        "`lm`",
        "trace, layers, embedding, norm, logits, token, tokenizer, lens(rows), direction(i)",
    ),
    (r"(?:Padded|Traced)Layer", "a layer of `lm`", "stream, input, attention, mlp"),
    (r"Layers", "`lm.layers`", "an index, a slice, len(), a loop"),
    (r"Part", "a part of `lm`", "input, output, live"),
)


#: The model's head, in errors about it and in lines that fail: its weights alone are another thing.
HEAD = "lm_head"

#: An index behind the batch's first prompt, where the batch itself is meant.
TOO_MANY = r"too many indices for tensor of dimension 2"

#: What it means on vLLM.
TOO_MANY_THERE = (
    "an index too many: on vLLM there is no batch axis, activations are [tokens, width]"
)

#: A pattern of the words, and a sentence.
MEANINGS: tuple[tuple[str, str], ...] = (
    (
        r"attribute '(?:q_proj|k_proj|v_proj)'",
        "vLLM merges query, key and value into one projection, `qkv_proj`; it returns a tuple",
    ),
    (
        r"attribute '(?:gate_proj|up_proj)'",
        "vLLM merges gate and up into one projection, `gate_up_proj`, which returns a tuple",
    ),
    (
        r"does not require grad|no grad|backward|requires_grad|inference tensor|\.grad\b",
        (
            "vLLM computes under inference mode: there are no gradients. Attribute by differences "
            "of forwards instead, or keep this on transformers"
        ),
    ),
    (
        r"LMHead's weights should be used",
        (
            "vLLM's head is not to be called. Multiply by its weights: "
            "`torch.nn.functional.linear(x, model.lm_head.weight)`"
        ),
    ),
    (
        r"expected Tensor as element \d+ in argument \d+, but got (?:int|float|bool)",
        (
            "a number stands in the place of a module's value: write into the value, "
            "`….output[:] = 0`"
        ),
    ),
    (
        r"'Tensor' object has no attribute '(?:output|input)'",
        "this is a value and no module, as `model.logits` is on vLLM: take it without `.output`",
    ),
    (
        HEAD,
        "vLLM does not call `lm_head` as a module: read `model.logits`, the last token's",
    ),
    (
        r"max_new_tokens",
        "vLLM calls it `max_tokens`",
    ),
    (
        r"attn_weights|attentions|output_attentions",
        "vLLM does not keep attention probabilities",
    ),
    (
        r"tuple.*(?:indices|no attribute|unsupported operand)|unsupported operand.*tuple",
        "on vLLM this module returns a tuple: take its parts by index",
    ),
    (
        TOO_MANY,
        (
            "an index too many. What a layer of this transformers returns is the stream itself, "
            "[batch, tokens, width], and `output[0]` is its first prompt's; on vLLM there is no "
            "batch axis"
        ),
    ),
    (
        r"OutOfOrderError|already ran past it",
        (
            "a block takes values in the order in which the model computes them: this one comes "
            "before what was taken above it"
        ),
    ),
    (
        r"tracer\.barrier",
        (
            "on vLLM no value goes from one invoke to another: run two traces, of which the first "
            "saves what the second uses"
        ),
    ),
    (
        r"Multiple prompts per invoke",
        (
            "on vLLM a trace takes one prompt, or an invoke does: make a trace for each, or an "
            "invoke for each in one trace"
        ),
    ),
    (
        r"can't allocate memory|MemoryError|bad_alloc|[Oo]ut of memory|Cannot allocate memory",
        (
            "it takes more memory than a trace may, which is half of what is free and at most "
            "16 GiB. If it needs more, allow it: --memory GIB"
        ),
    ),
)


def mended(pattern: str) -> Callable[[str], str]:
    """What mends a line whose error has this pattern."""
    edits = {
        r"LMHead's weights should be used": _multiplied,
        r"'Tensor' object has no attribute '(?:output|input)'": lambda text: re.sub(
            r"\.(logits|samples)\.(?:output|input)\b", r".\1", text
        ),
        HEAD: lambda text: re.sub(r"(\w+)\.lm_head\.output(\[:, -1\])?", r"\1.logits", text),
        "max_new_tokens": lambda text: text.replace("max_new_tokens", "max_tokens"),
    }
    return edits.get(pattern, lambda _: "")


def _multiplied(text: str) -> str:
    """The line with a product by the head's weights for a call of the head."""
    try:
        tree = ast.parse(text.strip())
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in {"lm_head", "embed_out"} and len(node.args) == 1 and not node.keywords:
            call, head, value = map(ast.unparse, (node, node.func, node.args[0]))
            product = f"torch.nn.functional.linear({value}, {head}.weight)"
            return text.replace(call, product)
    return text

"""What a module's value is on vLLM where transformers gives [1, tokens, width]: as text, read.

There is no batch axis there, and some modules return a pair. Known of the families that vLLM
writes itself (Llama and its like); what a name does not say is left as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass

#: A module's value in a line, with the index that is taken of it.
_VALUE = re.compile(
    r"(?P<module>\b[A-Za-z_]\w*(?:\.\w+|\[[^\[\]]*\])*)\.(?P<value>output|input)\b"
    r"(?P<index>(?:\[[^\[\]]*\])*)"
)

NO_BATCH = "there is no batch axis there: [tokens, width], and an index takes a token"


@dataclass(frozen=True)
class _Module:
    """What modules with such names give there: `there` is a template of the module's value and
    the index without a batch axis, "" where no line can say it. `tuples` says that transformers
    gives a tuple.
    """

    pattern: str
    value: str
    kind: str
    there: str
    why: str
    tuples: bool = False


_LAYER = r"(?:\b|\.)(?:layers|h|blocks)\[[^\[\]]*\]$|^layer$|\.layer$"
ATTENTION = r"(?:^|\.)(?:self_attn|attn|attention|self_attention)$"
_PROJECTION = (
    r"(?:^|\.)(?:o_proj|down_proj|out_proj|qkv_proj|gate_up_proj|dense|c_proj|c_attn|c_fc|fc1|fc2"
    r"|dense_h_to_4h|dense_4h_to_h|query_key_value)$"
)

#: The first that fits a module and its value.
_MODULES = (
    _Module(
        _LAYER,
        "output",
        "layer",
        "({0}[0] + {0}[1]){1}",
        "Llama's layers there return (MLP output, residual), [tokens, width] each: the stream is "
        "their sum. Other families return one tensor",
        tuples=True,
    ),
    _Module(
        _LAYER,
        "input",
        "positions",
        "",
        "a layer's first argument there is the positions: read the stream after the layer before",
    ),
    _Module(
        ATTENTION,
        "output",
        "attention",
        "{0}{1}",
        "attention there returns one tensor, [tokens, width], and not a tuple",
        tuples=True,
    ),
    _Module(
        r"(?:^|\.)(?:norm|\w*layernorm)$",
        "output",
        "pair",
        "{0}[0]{1}",
        "vLLM's RMS norms return (normed, residual), [tokens, width] each; the very first one "
        "returns one tensor",
    ),
    _Module(
        r"(?:^|\.)(?:norm|\w*layernorm)$",
        "input",
        "given",
        "",
        "vLLM's norms that also add are given (a layer's last output, residual), [tokens, width] "
        "each, an axis less, and the first one of all the embeddings alone. This line is yours to "
        "decide: the stream that transformers gives it is `sum(….inputs[0])` there",
    ),
    _Module(
        _PROJECTION,
        "output",
        "pair",
        "{0}[0]{1}",
        "vLLM's projections return (output, bias); the output is [tokens, width]",
    ),
    _Module(
        rf"(?:^|\.)(?:mlp|embed_tokens|wte|embed_in|word_embeddings|norm)$|{_PROJECTION}",
        "(?:in|out)put",
        "plain",
        "{0}{1}",
        NO_BATCH,
    ),
)


@dataclass(frozen=True)
class Value:
    """A module's value on vLLM: `after` is its text there, "" where no line can say it, `why` what
    is another thing. `place` is the value without its index, `index` the one there.
    """

    before: str
    after: str
    why: str
    kind: str
    place: str
    index: str


def values(line: str, layers: Collection[str] = (), *, same: bool = False) -> list[Value]:
    """The values in a line that are another thing on vLLM, in the order of the text; with those
    that are the `same` there. `layers` are names that hold a layer.
    """
    found = []
    for match in _VALUE.finditer(line):
        whole = "layer" if match["module"] in layers else match["module"]
        value = _value(match["module"], whole, match["value"], match["index"], match[0])
        if value is not None and (same or value.after != value.before):
            found.append(value)
    return found


def there(text: str) -> str | None:
    """A statement of `hf` as it is there, None where more than an axis is another thing."""
    for value in values(text, same=True):
        if value.kind != "plain":
            return None
        text = text.replace(value.before, value.after, 1)
    return text


def is_layer(text: str) -> bool:
    """Is this a model's layer?"""
    return bool(re.search(r"(?:^|\.)(?:layers|h|blocks)\[[^\[\]]*\]$", text))


def index_there(index: str, kind: str) -> str:
    """The index of a name that holds a value of this kind, without the batch axis."""
    return _without_batch(_without_first(index) if kind in {"layer", "attention"} else index)


def _value(module: str, known_as: str, name: str, index: str, whole: str) -> Value | None:
    for one in _MODULES:
        if re.search(one.pattern, known_as) and re.fullmatch(one.value, name):
            rest = _without_batch(_without_first(index) if one.tuples else index)
            place = f"{module}.{name}"
            return Value(whole, one.there.format(place, rest), one.why, one.kind, place, rest)
    return None


def write(line: str) -> tuple[str, str, str] | None:
    """The parts of a line that changes a module's value: what is written to, the operator, and
    what is written.
    """
    text = line.strip()
    try:
        [node] = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    target: ast.expr | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AugAssign):
        target = node.target
    if target is None or not isinstance(target, (ast.Attribute, ast.Subscript)):
        return None
    left = ast.get_source_segment(text, target) or ""
    operator, _, right = text[len(left) :].strip().partition("=")
    return (left, f"{operator.strip()}=", right.strip()) if _VALUE.search(left) else None


def written(line: str, layers: Collection[str] = ()) -> tuple[str, str] | None:
    """A line that writes to a value of which there are two there, as it is there, and why; None
    for any other.
    """
    parts = write(line)
    found = values(parts[0], layers) if parts else []
    if not parts or not found or found[0].kind not in {"layer", "pair"}:
        return None
    target, (left, operator, right) = found[0], parts
    for value in values(right, layers):
        right = right.replace(value.before, value.after, 1)
    first, second = f"{target.place}[0]", f"{target.place}[1]"
    index = target.index or "[:]"
    whole = operator == "=" and left == target.place
    layer = target.kind == "layer"
    if whole and layer:
        lines = [f"{target.place} = ({right}, {second} * 0)"]
    elif whole:
        lines = [f"{target.place} = ({right}, *{target.place}[1:])"]
    elif not layer or operator in {"+=", "-="}:
        lines = [f"{first}{index} {operator} {right}"]
    else:
        other = "0" if operator == "=" else right
        lines = [f"{first}{index} {operator} {right}", f"{second}{index} {operator} {other}"]
    why = f"{target.why}. A write must reach both of them: what is added is added to one"
    indent = line[: len(line) - len(line.lstrip())]
    return "\n".join(indent + one for one in lines), why if layer else target.why


def _without_first(index: str) -> str:
    """Without the `[0]` that takes the first of a tuple."""
    return re.sub(r"^\[0\]", "", index)


def _without_batch(index: str) -> str:
    """An index of [1, tokens, width] as one of [tokens, width]."""
    index = re.sub(r"^\[(?:0|:)\](?=\[|$)", "", index)
    first, behind = of_axes(index)
    if len(first) < 2 or first[0] not in {"0", ":"}:
        return index
    rest = first[1:-1] if len(first) > 2 and first[-1] == ":" else first[1:]
    return ("" if rest == [":"] else f"[{', '.join(rest)}]") + behind


def of_axes(index: str) -> tuple[list[str], str]:
    """What the first of these indices takes on each axis, and the indices behind it; ([], "") for
    what is no index.
    """
    try:
        node: ast.expr = ast.parse(f"x{index}", mode="eval").body
    except SyntaxError:
        return [], ""
    while isinstance(node, ast.Subscript) and not isinstance(node.value, ast.Name):
        node = node.value
    if not isinstance(node, ast.Subscript):
        return [], ""
    each = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    end = node.end_col_offset or 0
    return [ast.unparse(one) for one in each], f"x{index}".encode()[end:].decode()

"""Query, key and value of a layer's attention, and the heads that enter its output projection.

They are found by structure. The output projection, the projections of query, key and value (three
modules or one) and the norms after them are found by their usual names. The head count follows from
their widths. How one fused matrix holds the three is known for vLLM, which loads every checkpoint
into blocks, and measured on transformers' module: a first token attends only to itself, so its
heads' output is its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cosine_similarity

from conformance.engines.tree import hooked

OUTPUT = ("o_proj", "out_proj", "dense", "c_proj", "wo")
FUSED = ("qkv_proj", "query_key_value", "c_attn", "qkv", "Wqkv")
PROJECTIONS = {"query": ("q_proj", "wq"), "key": ("k_proj", "wk"), "value": ("v_proj", "wv")}
NORMS = {"query": ("q_norm", "q_layernorm"), "key": ("k_norm", "k_layernorm")}

#: How a fused matrix arranges its columns: all queries, all keys, all values; or, for each key
#: head, its queries, its key and its value (three per head if there are as many query heads).
BLOCKS, GROUPS = "blocks", "groups"
#: The query norm takes [heads, tokens, width].
HEADS_FIRST = "heads first"
#: The value is computed before the query and key norms.
VALUE_FIRST = "value first"

#: Attributes by which linear layers give their input and output widths, over all ranks.
_WIDTHS = (("in_features", "out_features"), ("input_size", "output_size"), ("nx", "nf"))

#: The tolerance, in float32, when measuring where a projection is.
_SAME = 1e-4


class Unplaced(Exception):
    """A part could not be located; the message says why."""


@dataclass(frozen=True)
class Inside:
    """Where query, key, value or the heads are: the `path` of a module within the attention, and
    the part of its input or output that holds them.

    `columns` are the columns of a row that hold the heads, in order; empty means all. Ranks may
    hold copies of the heads: their columns follow, and a write changes every copy. A norm may
    take each head separately, `width` wide: [tokens, heads, width] or, with `heads_first`, [heads,
    tokens, width].
    """

    path: str
    heads: int
    width: int
    of_input: bool = False
    columns: tuple[int, ...] = ()
    heads_first: bool = False

    def view(self, tensor: Tensor) -> Tensor:
        """Return a view [tokens, …] of a tensor with or without a batch axis."""
        by_head = tensor.shape[-1] == self.width and tensor.shape[-2] == self.heads
        if self.heads_first and tensor.ndim == 4:
            return tensor[0].transpose(0, 1)
        if tensor.ndim == 4 or (tensor.ndim == 3 and not by_head):
            return tensor[0]
        return tensor

    def read(self, tensor: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a copy [tokens, heads, width] of the block's own rows."""
        rows = own(self.view(tensor))
        if self.columns:
            rows = rows[:, list(self.columns[: self.heads * self.width])]
        return rows.reshape(len(rows), self.heads, -1).clone()

    def write(self, tensor: Tensor, own: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
        """Return a copy of the tensor with `value` [tokens, heads, width] written into it."""
        new = tensor.clone()
        rows = own(self.view(new))
        whole = value.expand(len(rows), *value.shape[-2:]).to(new.dtype)
        if self.columns:
            copies = len(self.columns) // (self.heads * self.width)
            rows[:, list(self.columns)] = whole.flatten(1).repeat(1, copies)
        else:
            rows[:] = whole.reshape(rows.shape)
        return new


@dataclass(frozen=True)
class LocatedParts:
    """The located parts by name. `why` gives the reason for each part that cannot be read. If
    `value_first`, the value is computed before the tensors that are read as query and key.
    """

    places: Mapping[str, Inside] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    value_first: bool = False


def find(
    attention: Module, heads: int, groups: int, *, arranged: str = "", ranks: int = 1
) -> LocatedParts:
    """Locate the parts of this attention with `heads` heads and `groups` key heads, as the config
    says. `arranged` is what `measure` returned for transformers' module of the same model.
    """
    children = dict(attention.named_children())
    named = partial(_first_named, children)
    projected, fused = named(OUTPUT), named(FUSED)
    if not projected or not heads:
        return LocatedParts(
            why=dict.fromkeys(("heads", "qkv"), "its attention has no output projection")
        )
    try:
        width = _features(children[projected])[0] // heads
    except Unplaced as error:
        return LocatedParts(why=dict.fromkeys(("heads", "qkv"), str(error)))
    places = {"heads": Inside(projected, heads, width, of_input=True)}
    try:
        if fused:
            places |= _of_one(children[fused], fused, heads, groups, width, arranged, ranks)
        else:
            places |= _of_three(children, heads, width)
    except Unplaced as error:
        return LocatedParts({"heads": places["heads"]}, {"qkv": str(error)})
    words = arranged.split(", ")
    norms = {part: path for part, names in NORMS.items() if (path := named(names))}
    if norms and ranks > 1:
        *_, path = norms.values()
        why = (
            f"{path} is given one rank's heads, which nnsight does not join: "
            f"a block on {ranks} ranks sees {heads // ranks} of {heads}"
        )
        return LocatedParts({"heads": places["heads"]}, {"qkv": why})
    for part, path in norms.items():
        places[part] = Inside(path, places[part].heads, width, heads_first=HEADS_FIRST in words)
    normed = places["query"].path != places["value"].path
    fused_first = normed and bool(places["value"].columns)
    return LocatedParts(places, value_first=fused_first or VALUE_FIRST in words)


def _first_named(children: Mapping[str, Module], names: tuple[str, ...]) -> str:
    """Return the first of these names that is a child of the attention and is not an Identity."""
    there = (name for name in names if name in children)
    return next((name for name in there if type(children[name]).__name__ != "Identity"), "")


def _features(module: Any) -> tuple[int, int]:
    """Return the input and output widths of a linear layer, over all ranks."""
    for into, out_of in _WIDTHS:
        if hasattr(module, into) and hasattr(module, out_of):
            return int(getattr(module, into)), int(getattr(module, out_of))
    raise Unplaced(f"{type(module).__name__} does not say how wide its rows are")


def _of_one(
    module: Module, path: str, heads: int, groups: int, width: int, arranged: str, ranks: int
) -> dict[str, Inside]:
    """Locate query, key and value in one fused matrix."""
    by_class = type(module).__name__.startswith("QKVParallel")
    groups = int(getattr(module, "total_num_kv_heads", groups)) if by_class else groups
    if by_class:
        spans = _rank_blocks(heads, groups, width, ranks, _features(module)[1])
    elif (words := arranged.split(", ", maxsplit=1)[0]) in (BLOCKS, GROUPS):
        spans = _spans(words, heads, groups, width, _features(module)[1])
    else:
        raise Unplaced(words or f"nobody measured how {path} arranges query, key and value")
    counts = {"query": heads, "key": groups, "value": groups}
    return {
        part: Inside(path, count, width, columns=tuple(spans[part]))
        for part, count in counts.items()
    }


def _of_three(children: Mapping[str, Module], heads: int, width: int) -> dict[str, Inside]:
    """Locate query, key and value, each in its own module."""
    paths = {part: _first_named(children, names) for part, names in PROJECTIONS.items()}
    if not all(paths.values()):
        raise Unplaced("its attention has no query, key and value of the heads")
    return {
        part: Inside(
            path, heads if part == "query" else _features(children[path])[1] // width, width
        )
        for part, path in paths.items()
    }


def _spans(arranged: str, heads: int, groups: int, width: int, total: int) -> dict[str, list[int]]:
    """Return the columns of query, key and value."""
    order = torch.arange(total)
    rest = 2 * groups * width  # a gate may come before them
    if arranged == GROUPS:
        held = order.reshape(groups, -1, width)
        parts = [held[:, :-2], held[:, -2], held[:, -1]]
    else:
        parts = [order[: heads * width], *order[total - rest :].chunk(2)]
    return {
        name: part.flatten().tolist()
        for name, part in zip(("query", "key", "value"), parts, strict=True)
    }


def _rank_blocks(
    heads: int, groups: int, width: int, ranks: int, total: int
) -> dict[str, list[int]]:
    """Return the columns of query, key and value if each rank holds its own heads' blocks. With
    fewer key heads than ranks, neighbouring ranks hold copies of one, which `total`, the width on
    one rank, does not count.
    """
    copies = max(ranks // groups, 1)
    if heads % ranks or groups * copies % ranks:
        raise Unplaced(f"{groups} heads of keys are not shared out among {ranks} ranks")
    each = (total + 2 * groups * (copies - 1) * width) // ranks
    spans = _spans(BLOCKS, heads // ranks, groups * copies // ranks, width, each)
    return {
        name: [
            rank * each + column
            for copy in range(held)
            for rank in range(copy, ranks, held)
            for column in spans[name]
        ]
        for name, held in (("query", 1), ("key", copies), ("value", copies))
    }


def counts(config: Any) -> tuple[int, int]:
    """Return the numbers of heads and of key heads in a config."""
    heads = int(getattr(config, "num_attention_heads", None) or 0)
    grouped = getattr(config, "new_decoder_architecture", False)
    if getattr(config, "multi_query", False) and not grouped:
        return heads, 1
    found = (getattr(config, name, None) for name in ("num_key_value_heads", "num_kv_heads"))
    return heads, int(next(filter(None, found), heads))


@torch.inference_mode()
def measure(model: Any, layers: list[Module], attention: str, heads: int, groups: int) -> str:
    """Return how transformers' module arranges a fused matrix and what its norms take; "" if there
    is nothing to measure.

    For a prompt's first token every head outputs its value (with sinks, part of it), so the columns
    that hold it are the values'. If no arrangement fits, the returned text says so.
    """
    every = [getattr(layer, attention, None) for layer in layers] if attention else []
    module = next((one for one in every if isinstance(one, Module)), None)  # hybrids have None
    if module is None or not heads:
        return ""
    children = dict(module.named_children())
    named = partial(_first_named, children)
    fused, projected = named(FUSED), named(OUTPUT)
    norm, value = named(NORMS["query"]), named(PROJECTIONS["value"])
    if not projected or not (fused or norm):
        return ""
    seen: dict[str, Tensor] = {}

    def noting(name: str) -> Callable[..., None]:
        def hook(_: Module, args: Any, output: Any = None) -> None:
            value = output if output is not None else args[0]
            seen[name] = (value[0] if isinstance(value, tuple) else value).detach().float()

        return hook

    tokens = heads + 3  # differs from the number of heads, so that the axes cannot be confused
    handles = [children[projected].register_forward_pre_hook(noting("heads"))]
    handles += [
        children[name].register_forward_hook(noting(name)) for name in (fused, norm, value) if name
    ]
    with hooked(handles):
        ids = torch.arange(tokens, device=next(model.parameters()).device)[None] + 1
        model(input_ids=ids, use_cache=False)
    words = [_arranged(seen[fused][0, 0], seen["heads"][0, 0], heads, groups) if fused else ""]
    if norm and seen[norm].ndim == 4 and seen[norm].shape[1] == heads:
        words.append(HEADS_FIRST)
    order = list(seen)  # in the order in which the modules were called
    if norm and value and order.index(value) < order.index(norm):
        words.append(VALUE_FIRST)
    return ", ".join(words)


def _arranged(row: Tensor, given: Tensor, heads: int, groups: int) -> str:
    """Return the arrangement under which this row's value is what the heads returned."""
    width = len(given) // heads
    tried = {}
    for words in (BLOCKS, GROUPS):
        value = row[_spans(words, heads, groups, width, len(row))["value"]]
        repeated = value.reshape(groups, width).repeat_interleave(heads // groups, dim=0)
        likeness = cosine_similarity(repeated, given.reshape(heads, width), dim=-1)
        tried[words] = 1 - float(likeness.min())
    best = min(tried, key=lambda words: tried[words])
    if tried[best] > _SAME:
        return "no arrangement of query key and value in one matrix gives what the heads give"
    return best

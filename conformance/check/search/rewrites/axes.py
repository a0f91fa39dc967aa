"""Axes: vLLM's activations have no batch axis, [tokens, width] for [1, tokens, width]."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, joined
from conformance.check.search.rewrites.reads import without_batch

#: Methods and functions of tensors that are given an axis, or sizes of axes.
_OF_AXES = frozenset(
    [
        "mean",
        "sum",
        "argmax",
        "argmin",
        "max",
        "min",
        "amax",
        "amin",
        "softmax",
        "log_softmax",
        "norm",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "transpose",
        "permute",
        "swapaxes",
        "cat",
        "stack",
        "concat",
        "topk",
        "sort",
        "argsort",
        "cumsum",
        "chunk",
        "split",
        "select",
        "narrow",
        "index_select",
        "gather",
        "scatter",
        "size",
        "view",
        "reshape",
        "expand",
        "repeat",
        "std",
        "var",
        "logsumexp",
        "any",
        "all",
        "unbind",
        "movedim",
        "flip",
        "roll",
        "prod",
        "median",
    ]
)


_AXIS = "vLLM's values have an axis less"


def drop_batch_index(program: Program, clues: Clues) -> Iterator[Change]:
    """Index what was read without a batch axis: `h[:, -1]` as `h[-1]`, `h[0]` as `h`."""
    for node in program.expressions(cst.Subscript):
        if isinstance(program.parents.get(node), cst.Subscript):
            continue
        core, indexes = _chain(program, node)
        if not indexes or core.endswith(("layers", ".h", "shape")):
            continue
        for form in without_batch(indexes)[1:]:
            change = (program.swap(node, joined(core, form)),)
            yield Change(change, "there is no batch axis on vLLM", 2)
        if indexes[0] in {"-1", "0"}:
            yield Change((program.swap(node, core),), "there is no batch axis on vLLM", 4)


def _chain(program: Program, node: cst.BaseExpression) -> tuple[str, list[str]]:
    indexes: list[str] = []
    while isinstance(node, cst.Subscript):
        indexes.insert(0, ", ".join(program.code(one.slice).strip() for one in node.slice))
        node = node.value
    return program.code(node), indexes


def shift_axis(program: Program, clues: Clues) -> Iterator[Change]:
    """Count axes without the batch: `dim=1` as `dim=0`."""
    for node in program.expressions(cst.Call):
        if program.code(node.func).rpartition(".")[2] not in _OF_AXES:
            continue
        axes = [arg.value for arg in node.args if isinstance(arg.value, cst.Integer)]
        for axis in axes:
            number = int(axis.value)
            for other in {number - 1, number + 1, -1} - {number, -2}:
                cost = 2 if other == number - 1 else 6
                yield Change((program.swap(axis, str(other)),), _AXIS, cost)
        if len(axes) == 2 and all(int(axis.value) for axis in axes):
            lower = tuple(program.swap(axis, str(int(axis.value) - 1)) for axis in axes)
            yield Change(lower, _AXIS, 2)


def leave_axis(program: Program, clues: Clues) -> Iterator[Change]:
    """Leave out what takes the batch axis away or adds it, or counts it in a shape."""
    for node in program.expressions(cst.Call):
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value in {"squeeze", "unsqueeze"}:
            change = (program.swap(node, program.code(func.value)),)
            yield Change(change, "there is no batch axis to take away or add", 3)
    for node in program.expressions(cst.Subscript):
        index = _chain(program, node)[1][-1]
        if program.code(node.value).endswith(".shape") and index in {"1", "2"}:
            change = (program.swap(node.slice[0].slice, str(int(index) - 1)),)
            yield Change(change, _AXIS, 2)

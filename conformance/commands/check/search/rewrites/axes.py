"""Rewrites of axes: vLLM's activations are [tokens, width], transformers' [1, tokens, width]."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import ParsedFile, enclosed, joined
from conformance.commands.check.search.rewrites.reads import without_batch

#: Tensor methods and functions that take an axis, or the sizes of axes.
OF_AXES = re.compile(
    r"all|amax|amin|any|argmax|argmin|argsort|cat|chunk|concat|cumsum|expand|flatten|flip|gather"
    r"|index_select|log_softmax|logsumexp|max|mean|median|min|movedim|narrow|norm|permute|prod"
    r"|repeat|reshape|roll|scatter|select|size|softmax|sort|split|squeeze|stack|std|sum|swapaxes"
    r"|topk|transpose|unbind|unflatten|unsqueeze|var|view"
)

_AXIS = "vLLM's values have an axis less"


def drop_batch_index(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Remove the batch axis from an index: `h[:, -1]` becomes `h[-1]`, `h[0]` becomes `h`."""
    words = "there is no batch axis on vLLM"
    for node in program.expressions(cst.Subscript):
        if isinstance(program.parents.get(node), cst.Subscript):
            continue
        core, indexes = program.indexed(node)
        if core.endswith(("layers", ".h", "shape")):
            continue
        for form in without_batch(indexes)[1:]:
            yield change(2, words, program.swap(node, joined(core, form)))
        if indexes[0] in {"-1", "0"}:
            yield change(4, words, program.swap(node, core))


def shift_axis(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Renumber an axis without the batch axis: `dim=1` becomes `dim=0`."""
    for node in program.expressions(cst.Call):
        if not OF_AXES.fullmatch(program.code(node.func).rpartition(".")[2]):
            continue
        axes = [arg.value for arg in node.args if isinstance(arg.value, cst.Integer)]
        lower = [program.swap(axis, str(int(axis.value) - 1)) for axis in axes]
        for axis, shift in zip(axes, lower, strict=True):
            yield change(2, _AXIS, shift)
            for other in {int(axis.value) + 1, -1}:
                yield change(6, _AXIS, program.swap(axis, str(other)))
        if len(axes) == 2:
            yield change(2, _AXIS, *lower)


#: Uses of an axis, and what stands there without the batch axis; with the cost of the change.
_LEFT_OUT = (
    (3, "X.squeeze(A)", ""),
    (3, "X.squeeze()", ""),
    (3, "X.unsqueeze(A)", ""),
    (2, "X.shape[1]", ".shape[0]"),
    (2, "X.shape[2]", ".shape[1]"),
)


def leave_axis(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Remove a change of the axes, or take a size by the axis' number on vLLM."""
    for cost, pattern, end in _LEFT_OUT:
        for node, holes in program.matches(pattern):
            code = program.code(holes["X"])
            text = f"{enclosed(holes['X'], code)}{end}" if end else code
            yield change(cost, _AXIS, program.swap(node, text))

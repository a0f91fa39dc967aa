"""float32 values that are written where a model computes in bf16."""

from __future__ import annotations

import ast
from dataclasses import replace

import torch

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.source import UserFile
from conformance.check.values import compare
from conformance.check.values.compare import Values

#: What a write of float32 values does in a run in bf16.
PRECISION = (
    "a check runs the trace in float32 and in bf16, and here float32 values are put where the "
    "model computes in bf16: cast what is written, `.to(hidden.dtype)`"
)


def widened(file: UserFile, mine: Values) -> tuple[Finding, ...]:
    """The first layer of an engine in bf16 whose stream is float32: what was written there is, and
    vLLM's kernels take its bytes for numbers in bf16.
    """
    streams = compare.layers(mine).items()
    wide = [site for site, rows in streams if site.name == "stream" and rows.dtype == torch.float32]
    if not wide:
        return ()
    first = min(wide, key=lambda one: (one.step, one.prompt, one.layer or 0))
    edit = uncast(Places(file, file.function_for("vllm")), first.layer)
    words = f"since layer {first.layer} the residual stream is float32 there: {PRECISION}"
    found = Finding("precision", words, layer=first.layer, step=first.step, prompt=first.prompt)
    return (replace(found, edit=edit),)


def uncast(places: Places, layer: int | None = None) -> Edit | None:
    """The line that writes at this layer, or at any, and casts nothing to another precision."""
    for write in places.writes():
        value = statements.value_of(write.statement)
        text = places.file.segment(value) if value is not None else ""
        fits = layer is None or write.layer in {None, layer}
        if fits and isinstance(write.statement, ast.Assign) and ".to(" not in text:
            return Edit(write.line, places.file.line(write.line))
    return None

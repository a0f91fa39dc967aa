"""Rewrites of modules that compute another value on vLLM: activations and embeddings."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import ParsedFile, Splice, joined
from conformance.commands.check.search.rewrites.reads import without_batch
from conformance.commands.check.search.rewrites.writes import stores

#: The names of activation functions in MLPs.
_ACTIVATION = re.compile(r"(.+)\.(?:act|act_fn|activation|activation_fn)\.(output|input)")

#: The activation functions of gated MLPs: the cost, and the code with a place for the gate.
_FUNCTIONS = (
    (1, "silu({})"),
    (2, 'gelu({}, approximate="tanh")'),
    (2, "gelu({})"),
    (3, "relu({})"),
)

#: A path from the model to its list of layers.
_LAYERS = re.compile(r"((?:lm\.)?model)\.((?:\w+\.)*(?:layers|h|blocks))")


def take_engine_layers(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Take the engine's path to the list of layers, wherever another one stands."""
    swaps = [
        program.swap(node, f"{found[1]}.{clues.layers}")
        for node in program.expressions(cst.Attribute)
        if (found := _LAYERS.fullmatch(program.code(node))) and found[2] != clues.layers
    ]
    if swaps and clues.layers:
        yield change(1, f"the engine's layers are `{clues.layers}`", *swaps, anywhere=True)


def compute_activation(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Compute the activation of the gate in the place of vLLM's fused function."""
    words = "vLLM's activation function multiplies the activation of the gate by the other half"
    if not {"gate_proj", "gate_up_proj"} & clues.widths.keys():
        return
    for access in program.accesses:
        if access.stored or not (found := _ACTIVATION.fullmatch(program.full_path(access.core))):
            continue
        mlp, role = found.groups()
        gate = f"{mlp}.gate_up_proj.output[0].chunk(2, dim=-1)[0]"
        functional, added = _functional(program)
        computed = [(cost, f"{functional}.{code.format(gate)}") for cost, code in _FUNCTIONS]
        values = computed if role == "output" else [(1, gate)]
        for cost, value in values:
            for index in without_batch(access.indexes)[::-1]:
                swap = program.swap(access.node, joined(value, index))
                yield change(cost, words, swap, *(added if role == "output" else ()))


def _functional(program: ParsedFile) -> tuple[str, tuple[Splice, ...]]:
    """Return the file's name for `torch.nn.functional`, and the splices that import it."""
    imports = r"^(?:import torch\.nn\.functional|from torch\.nn import functional) as (\w+)"
    if found := re.search(imports, program.text, flags=re.MULTILINE):
        return found[1], ()
    return "torch.nn.functional", program.importing("torch")


def scale_embedding(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Multiply a read of the embedding by the square root of the width, and divide a write by it:
    transformers' module scales its output in some families, vLLM's does not.
    """
    words = "vLLM's embeddings are not scaled by the square root of the width"
    written = {access.node: (at, sign, value) for access, at, sign, value in stores(program)}
    for access in program.accesses if clues.embedding else ():
        if not program.full_path(access.core).endswith(f".{clues.embedding}.output"):
            continue
        scale = f"{access.core}.shape[-1] ** 0.5"
        if access.node in written:
            statement, sign, value = written[access.node]
            if sign in {"=", "+=", "-="}:
                target = joined(access.core, access.indexes)
                text = f"{target} {sign} ({value}) / {scale}"
                yield change(3, words, program.put(statement, text))
        elif not access.stored:
            for cost, index in enumerate(without_batch(access.indexes), 3):
                text = f"({joined(access.core, index)} * {scale})"
                yield change(cost, words, program.swap(access.node, text))

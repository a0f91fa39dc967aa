"""Faults of the engine's own forward: hooks in the real model, in the process that runs it."""

from __future__ import annotations

import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from conformance.commands.selftest.fault import VLLM, FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.model import (
    attention,
    change_branch,
    layer_of,
    mlp,
    positional,
)
from conformance.commands.selftest.faults.operators import blurred, scaled, shifted, zeros
from conformance.spec.records import Side, Verdict

OFF = (Verdict.WRONG, Verdict.DRIFT)
CASES = ("clean.pair", "read_all.pair")
#: Other cases that show a wrong forward: the lens, one prompt of six, the final norm.
MORE = (*CASES, "logit_lens.all", "batch.six", "accessors.norm")
FORWARD = FaultFamily(
    side=Side.ENGINE,
    point=Point.FORWARD,
    cases=CASES,
    verdicts=Verdict.WRONG,
    places="middle",
)
MLP = FaultFamily(partial(change_branch, mlp), **FORWARD.common)
ATTENTION = FaultFamily(partial(change_branch, attention), **FORWARD.common)
#: Attention that keeps a latent of keys and values.
LATENT = FaultFamily(
    **FORWARD.common
    | {"architectures": ("deepseek_v2", "deepseek_v3"), "places": ("first", "middle")}
)
POSITIONS = FaultFamily(**FORWARD.common | {"places": "", "verdicts": OFF})


MLP.add(
    "mlp-lost",
    zeros,
    "One layer's MLP adds nothing.",
    places=("first", "middle", "last"),
    quick=True,
)
# What could show that the write arrived is itself wrong, so this is reported. A report that the
# check had no power would blame nobody.
MLP.add(
    "edit-unseen",
    zeros,
    "The last layer's MLP adds nothing, with an edit and without: of few layers all that comes "
    "after the written one is wrong, and nothing shows if the edit arrived.",
    cases=("ablation.middle", "steering.middle-large-all"),
    places="last",
)
MLP.add(
    "mlp-scaled",
    scaled,
    "What one layer's MLP gives is multiplied by a constant.",
    cases=MORE,
    doses=(1.01, -1.0),
)
MLP.add(
    "mlp-rows",
    shifted,
    "What one layer's MLP gives is shifted by one token, across requests too.",
    cases=MORE,
    doses=1,
)
MLP.add(
    "coarse-mlp",
    blurred,
    "One layer's MLP carries a random error.",
    doses=(0.003, 0.03, 0.3),
    verdicts=OFF,
    cases="read_all.pair",
)
ATTENTION.add(
    "attention-lost", zeros, "One layer's attention adds nothing.", places=("first", "last")
)
ATTENTION.add(
    "attention-scaled",
    scaled,
    "What one layer's attention gives is multiplied by a constant.",
    cases=MORE,
    doses=(1.01, -1.0),
)


@MLP.fault(
    "row-lost",
    cases="read_all.pair",
    places=("first", "middle"),
    met="nnsight pull request 685: partial sums under tensor parallelism",
)
def row_lost(rows: Tensor, now: Moment) -> Tensor:
    """One token's row of an MLP is zero, as after a race between ranks."""
    rows = rows.clone()
    if len(rows) > 3:
        rows[-2] = 0
    return rows


@FORWARD.fault("slots-off", cases="multigen.read", places="", backends=VLLM)
def slots(model: nn.Module, now: Moment) -> list[Any]:
    """The scheduler's map of tokens to slots of the cache is one off, so that later steps attend to
    keys and values in each other's place.
    """
    context = importlib.import_module("vllm.forward_context")

    def hook(_: Any, args: Any) -> None:
        if not context.is_forward_context_available():
            return
        forward_context = context.get_forward_context()
        described = (forward_context.attn_metadata or {}).values()
        maps = [
            *(forward_context.slot_mapping or {}).values(),
            *(getattr(one, "slot_mapping", None) for one in described),
        ]
        own = {one.data_ptr(): one for one in maps if isinstance(one, Tensor) and len(one) > 1}
        for slot_map in own.values():
            slot_map.copy_(slot_map.roll(1))

    return [model.register_forward_pre_hook(hook)]


# Cases that read only logits still pass.
@FORWARD.fault(
    "hooks-skipped",
    cases=("clean.alone", "clean.pair"),
    backends=VLLM,
    places="",
    verdicts=Verdict.ERROR,
)
def hooks_skipped(model: nn.Module, now: Moment) -> list[Any]:
    """The engine goes around nnsight's hooks, as a replayed graph does; what reads nothing but
    logits is right all the same.
    """
    forwards = [
        (module, forward)
        for module in model.modules()
        if (forward := module.__dict__.pop("forward", None)) is not None
    ]

    def restore() -> None:
        for module, forward in forwards:
            module.__dict__["forward"] = forward

    return [SimpleNamespace(remove=restore)]


@FORWARD.fault(
    "extract-off",
    cases="extract.alone",
    backends=("hf", "vllm-pp1"),  # vLLM refuses several stages
    alone=True,
    says="previous layer",
)
def layer_before(model: nn.Module, now: Moment) -> list[Any]:
    """The engine returns the output of the previous layer as that of layer `at`."""
    assert now.at is not None  # noqa: S101 - every variant of this names a layer
    at = now.at

    def hook(_: Any, args: Any, output: Any) -> Any:
        states = getattr(output, "hidden_states", None)
        if states is not None:
            place = at + 1  # hidden_states[0] is the input of layer 0
            output.hidden_states = (*states[:place], states[place - 1], *states[place + 1 :])
        elif isinstance(output, tuple) and isinstance(output[1], list):
            # vLLM returns the last hidden states and a list; entry i is the output of layer i.
            output[1][at] = output[1][at - 1]
        return output

    return [model.register_forward_hook(hook)]


@LATENT.fault("latent-norm")
def latent_off(model: nn.Module, now: Moment) -> list[Any]:
    """The latent that attention keeps of keys and values is not normed."""
    part = layer_of(model, now)
    if part is None:
        return []
    norms = [child for name, child in part.named_modules() if name.endswith("kv_a_layernorm")]
    if not norms:
        raise Inexpressible("the layer's attention has no latent")

    def hook(_: Any, args: Any, output: Any) -> Any:
        return args[0]

    return [norm.register_forward_hook(hook) for norm in norms]


@POSITIONS.fault("rope", doses=(1, 8), quick=True)
def positions_off(model: nn.Module, now: Moment) -> list[Any]:
    """Every position after the first is too far on."""
    modules = positional(model)
    if not modules:
        raise Inexpressible("no module turns positions into anything")

    def move(ids: Any) -> Any:
        if isinstance(ids, Tensor) and not ids.is_floating_point():
            return torch.where(ids > 0, ids + int(now.dose), ids)
        return ids

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        return tuple(map(move, args)), {key: move(value) for key, value in kwargs.items()}

    return [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]


POSITIONS.add(
    "rope-long",
    positions_off,
    "Every position of a long prompt after the first is one too far on.",
    cases="long_context.all",
    parts="long",
    doses=1,
    alone=True,
    met="vllm #18267, #28839: pipeline stages wrong at long context only",
)

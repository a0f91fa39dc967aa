"""Faults of the engine's own forward: hooks in the real model, in the process that runs it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conformance.records import Side, Verdict
from conformance.selftest.fault import VLLM, Fault, Inexpressible, Moment, Point
from conformance.selftest.faults.model import (
    attention,
    branch_gives,
    latent,
    layer,
    mlp,
    positional,
)
from conformance.selftest.faults.shapes import noisy

OFF = frozenset({Verdict.WRONG, Verdict.DRIFT})
WRONG = frozenset({Verdict.WRONG})
CASES = ("clean.pair", "read_all.pair")
#: The width of a key's rotary part in published models with latent attention; CPU kernels support
#: no other width.
_ROTARY = 64
LATENT = ("deepseek_v2", "deepseek_v3")
#: Other cases that show a wrong forward: the lens, one prompt of six, the final norm.
MORE = (*CASES, "logit_lens.all", "batch.six", "accessors.norm")


def no_mlp(model: nn.Module, now: Moment) -> list[Any]:
    return branch_gives(model, now, mlp, torch.zeros_like)


def double_mlp(model: nn.Module, now: Moment) -> list[Any]:
    return branch_gives(model, now, mlp, lambda value: value * 2)


def no_attention(model: nn.Module, now: Moment) -> list[Any]:
    return branch_gives(model, now, attention, torch.zeros_like)


def noisy_mlp(model: nn.Module, now: Moment) -> list[Any]:
    def change(value: Tensor) -> Tensor:
        rows = value.reshape(-1, value.shape[-1])
        return noisy(rows, now.dose).reshape(value.shape)

    return branch_gives(model, now, mlp, change)


def row_lost(model: nn.Module, now: Moment) -> list[Any]:
    """Set the second-last token's row of a branch to zero."""

    def change(value: Tensor) -> Tensor:
        rows = value.reshape(-1, value.shape[-1]).clone()
        if len(rows) > 3:
            rows[-2] = 0
        return rows.reshape(value.shape)

    return branch_gives(model, now, mlp, change)


def latent_off(model: nn.Module, now: Moment) -> list[Any]:
    """Return the input of the latent's norm unchanged."""

    def hook(_: Any, args: Any, output: Any) -> Any:
        return args[0]

    return _latent(model, now, 1, hook)


def latent_rotary_lost(model: nn.Module, now: Moment) -> list[Any]:
    """Set the keys' rotary part to zero: the last columns of the projection to the latent."""

    def hook(_: Any, args: Any, output: Any) -> Any:
        rows, *more = output if isinstance(output, tuple) else (output,)
        changed = rows.clone()
        changed[..., -_ROTARY:] = 0
        return (changed, *more) if isinstance(output, tuple) else changed

    return _latent(model, now, 0, hook)


def _latent(model: nn.Module, now: Moment, which: int, hook: Any) -> list[Any]:
    assert now.at is not None  # noqa: S101 - every variant of these names a layer
    part = layer(model, now.at, now.layers)
    if part is None:
        return []
    module = latent(part)[which]
    if module is None:
        raise Inexpressible("the layer's attention has no latent")
    return [module.register_forward_hook(hook)]


def positions_off(model: nn.Module, now: Moment) -> list[Any]:
    """Move every position after the first further on by the dose."""
    modules = positional(model)
    if not modules:
        raise Inexpressible("no module turns positions into anything")

    def move(ids: Any) -> Any:
        if isinstance(ids, Tensor) and not ids.is_floating_point():
            return torch.where(ids > 0, ids + int(now.dose), ids)
        return ids

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        return tuple(map(move, args)), {key: move(value) for key, value in kwargs.items()}

    return [module.register_forward_pre_hook(hook, with_kwargs=True) for _, module in modules]


class _Bypassed:
    """Modules that run without nnsight's hooks until this is removed."""

    def __init__(self, forwards: list[tuple[nn.Module, Any]]) -> None:
        self.forwards = forwards
        for module, _ in forwards:
            del module.__dict__["forward"]

    def remove(self) -> None:
        for module, forward in self.forwards:
            module.__dict__["forward"] = forward


def hooks_skipped(model: nn.Module, now: Moment) -> list[Any]:
    """Bypass nnsight's hooks, as a replayed graph does."""
    forwards = [(module, module.__dict__.get("forward")) for module in model.modules()]
    return [_Bypassed([(module, forward) for module, forward in forwards if forward is not None])]


def unchanged(value: Any, now: Moment) -> Any:
    """Change nothing: the engine is only opened with other options."""
    return value


def _fault(name: str, act: Any, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.ENGINE,
        "point": Point.FORWARD,
        "cases": CASES,
        "verdicts": WRONG,
        "places": ("middle",),
    }
    return Fault(id=name, act=act, **(defaults | more))


FAULTS = (
    _fault(
        "mlp-lost",
        no_mlp,
        places=("first", "middle", "last"),
        quick=True,
        summary="One layer's MLP adds nothing.",
    ),
    # Not where a norm after the branch removes the scale again (gemma2).
    _fault(
        "mlp-twice",
        double_mlp,
        places=("middle", "last"),
        architectures=("llama", "gpt2"),
        summary="One layer's MLP adds twice what it should.",
    ),
    _fault(
        "attention-lost",
        no_attention,
        places=("first", "last"),
        summary="One layer's attention adds nothing.",
    ),
    # Cases that read only logits still pass.
    _fault(
        "hooks-skipped",
        hooks_skipped,
        cases=("clean.alone", "clean.pair"),
        backends=VLLM,
        places=("",),
        verdicts=frozenset({Verdict.ERROR}),
        summary=(
            "The engine goes around nnsight's hooks, as a replayed graph does; what "
            "reads nothing but logits is right all the same."
        ),
    ),
    _fault(
        "row-lost",
        row_lost,
        cases=("read_all.pair",),
        places=("first", "middle"),
        summary="One token's row of an MLP is zero, as after a race between ranks.",
        met="nnsight pull request 685: partial sums under tensor parallelism",
    ),
    _fault(
        "rope",
        positions_off,
        doses=(1, 8),
        places=("",),
        verdicts=OFF,
        quick=True,
        summary="Every position after the first is too far on.",
    ),
    _fault(
        "rope-long",
        positions_off,
        cases=("long_context.all",),
        parts=("long",),
        doses=(1,),
        places=("",),
        verdicts=OFF,
        alone=True,
        summary="Every position of a long prompt after the first is one too far on.",
        met="vllm #18267, #28839: pipeline stages wrong at long context only",
    ),
    _fault(
        "softcap-window",
        unchanged,
        point=Point.NOWHERE,
        cases=("long_context.all",),
        parts=("long",),
        places=("",),
        backends=VLLM,
        verdicts=OFF,
        alone=True,
        options={"hf_overrides": {"sliding_window": 4096}},
        summary="The sliding window of attention is ignored.",
    ),
    # The error is so large that no reading of the probe prompt is the stream; that is reported.
    _fault(
        "longrope-factors",
        unchanged,
        point=Point.NOWHERE,
        architectures=("phi3",),
        places=("",),
        backends=VLLM,
        verdicts=OFF | {Verdict.STRUCTURE},
        alone=True,
        options={
            "hf_overrides": {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 50000.0,
                    "partial_rotary_factor": 0.5,
                }
            }
        },
        summary="Rotary positions are not stretched by the factors of the config.",
    ),
    _fault(
        "latent-norm",
        latent_off,
        architectures=LATENT,
        places=("first", "middle"),
        summary="The latent that attention keeps of keys and values is not normed.",
    ),
    _fault(
        "latent-rotary",
        latent_rotary_lost,
        architectures=LATENT,
        places=("first", "middle"),
        summary="The keys of latent attention carry no position.",
    ),
    _fault(
        "coarse-mlp",
        noisy_mlp,
        doses=(0.003, 0.03, 0.3),
        verdicts=OFF,
        cases=("read_all.pair",),
        summary="One layer's MLP carries a random error.",
    ),
)

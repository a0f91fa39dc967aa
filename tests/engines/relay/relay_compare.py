"""Comparing what two engines returned, bit by bit."""

from __future__ import annotations

from typing import Any

import torch
from relay_lab import Engine, ProgramError

from tests.patience import PATIENCE

#: Counters of the relay that are no leak: they grow for as long as the engine runs.
GROWING = {"stage", "steps", "bytes", "resident"}


def differences(a: Any, b: Any, at: str = "") -> list[str]:  # noqa: PLR0911 - one a type
    """Every place at which two results differ."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return [f"{at}: {a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"]
        # NaN is equal to itself here: what counts is the bits.
        a, b = a.cpu(), b.cpu()
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        worst = (a.float() - b.float()).abs().max() if a.numel() else 0
        return [] if torch.equal(*bits) else [f"{at}: differ by up to {worst}"]
    if type(a) is not type(b):
        return [f"{at}: {type(a).__name__} and {type(b).__name__}"]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{at}: keys {sorted(a)} and {sorted(b)}"]
        return [d for key in a for d in differences(a[key], b[key], f"{at}.{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{at}: {len(a)} and {len(b)} entries"]
        pairs = enumerate(zip(a, b, strict=True))
        return [d for i, (x, y) in pairs for d in differences(x, y, f"{at}[{i}]")]
    return [] if a == b else [f"{at}: {a!r} and {b!r}"]


def tensors(value: Any) -> int:
    """How many tensors there are in a result; a program that returns none proves nothing."""
    if isinstance(value, torch.Tensor):
        return 1
    if isinstance(value, dict):
        return sum(tensors(item) for item in value.values())
    return sum(tensors(item) for item in value) if isinstance(value, list | tuple) else 0


def same_on(one: Engine, other: Engine, program: str, *args: Any) -> None:
    """A program gives the same on both engines, and leaves nothing behind on the second."""
    expected, got = one.run(program, *args), other.run(program, *args)
    assert tensors(expected) or program == "untraced"
    found = differences(expected, got)
    assert not found, found[:5]
    assert_clean(other)


def error_of(engine: Engine, program: str, *args: Any) -> ProgramError:
    """What the program dies of; it has to, and not hang."""
    try:
        value = engine.run(program, *args, timeout=PATIENCE)
    except ProgramError as error:
        return error
    raise AssertionError(f"{program} returned {value!r}")


def assert_clean(engine: Engine) -> None:
    """Every counter of the relay is zero on every rank."""
    for rank in engine.run("state"):
        assert not any(value for name, value in rank.items() if name not in GROWING), rank
    assert not any(engine.run("tracked"))

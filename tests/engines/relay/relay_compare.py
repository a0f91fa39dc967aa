"""Comparing what two engines returned, bit by bit."""

from __future__ import annotations

from typing import Any

import torch
from relay_lab import Engine, ProgramError
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from tests.patience import PATIENCE

#: Counters of the relay that are no leak: they grow for as long as the engine runs.
GROWING = {"stage", "steps", "bytes", "resident"}


def differences(a: Any, b: Any) -> list[str]:
    """Every place at which two results differ."""
    (one, shape), (other, other_shape) = tree_flatten_with_path(a), tree_flatten_with_path(b)
    if shape != other_shape:
        return [f"{shape} and {other_shape}"]
    pairs = zip(one, other, strict=True)
    return [f"{keystr(at)}: {words}" for (at, x), (_, y) in pairs if (words := difference(x, y))]


def difference(a: Any, b: Any) -> str:
    """How two values differ, "" if they do not; nan equals itself, since the bits count."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return "" if type(a) is type(b) and a == b else f"{a!r} and {b!r}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
    a, b = a.cpu(), b.cpu()
    if torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))):
        return ""
    return f"differ by up to {(a.float() - b.float()).abs().max()}"


def same_on(one: Engine, other: Engine, program: str, *args: Any) -> None:
    """A program gives the same on both engines, and leaves nothing behind on the second."""
    expected, got = one.run(program, *args), other.run(program, *args)
    # A program that returns no tensors proves nothing.
    tensors = [leaf for leaf in tree_leaves(expected) if isinstance(leaf, torch.Tensor)]
    assert tensors or program in {"untraced", "random_program"}
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


def left_behind(engine: Engine) -> list[dict[str, int]]:
    """The relay's counters that are not zero, on each rank that has any."""
    ranks = engine.run("state")
    left = [{k: v for k, v in rank.items() if v and k not in GROWING} for rank in ranks]
    return [rank for rank in left if rank]


def assert_clean(engine: Engine) -> None:
    assert not left_behind(engine)
    assert not any(engine.run("rpc", "nnsight_request_count"))

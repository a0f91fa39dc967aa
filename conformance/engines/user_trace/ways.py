"""The honest ways of computing the same under nnsight: attention, order of addition, roundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.source import STATE

from conformance.engines.reference.ensemble import other_forwards
from conformance.engines.reference.patched_forward import Forwards


@dataclass(frozen=True)
class Way:
    """One honest way of computing: its attention, sums in halves, and fewer roundings."""

    name: str
    attention: str = "eager"
    split: bool = False
    fused: bool = False


TRUTH = Way("truth")
WAYS = (
    Way("eager"),
    Way("split", split=True),
    Way("sdpa", "sdpa"),
    Way("fused", "sdpa", fused=True),
    Way("fused_split", "sdpa", split=True, fused=True),
)


@contextmanager
def computing(module: Any, way: Way) -> Iterator[None]:
    """The model computes in this way inside of the block."""
    if module.config._attn_implementation != way.attention:
        module.set_attn_implementation(way.attention)
    with _below_nnsight(other_forwards(module, split=way.split, fused=way.fused)):
        yield


@contextmanager
def _below_nnsight(forwards: Forwards) -> Iterator[None]:
    """Make modules compute by these forwards between the input and the output that nnsight hands
    to a trace, so that what a trace writes to either goes on.

    A module whose operations a trace reads (`.source`) computes by its own forward, which nnsight
    then puts in the place of this one.
    """
    states = [(child.__dict__[STATE], forward) for child, forward in forwards.items()]
    before = [(state.body, state.sourced, state.compiled) for state, _ in states]
    for state, forward in states:
        state.body, state.sourced, state.compiled = _body(forward), False, None
    try:
        yield
    finally:  # a function that fails in this way is called again in another
        for (state, _), own in zip(states, before, strict=True):
            state.body, state.sourced, state.compiled = own


def _body(forward: Callable[..., Any]) -> Callable[..., Any]:
    """nnsight hands the module to the body of its forward."""
    return lambda _, *args, **kwargs: forward(*args, **kwargs)

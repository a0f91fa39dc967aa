"""The baseline runs under nnsight: other attention, order of addition and roundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.source import STATE

from conformance.engines.reference.forwards import Forwards, other_forwards


@dataclass(frozen=True)
class Way:
    """One baseline run: its attention, sums in halves (`split`), and fewer roundings (`fused`)."""

    name: str
    attention: str = "eager"
    split: bool = False
    fused: bool = False


REFERENCE_RUN = Way("truth")
WAYS = (
    Way("eager"),
    Way("split", split=True),
    Way("sdpa", "sdpa"),
    Way("fused", "sdpa", fused=True),
    Way("fused_split", "sdpa", split=True, fused=True),
)


@contextmanager
def computing(module: Any, way: Way) -> Iterator[None]:
    """Make the model compute as in this baseline run inside the with block."""
    if module.config._attn_implementation != way.attention:
        module.set_attn_implementation(way.attention)
    with _below_nnsight(other_forwards(module, split=way.split, fused=way.fused)):
        yield


@contextmanager
def _below_nnsight(forwards: Forwards) -> Iterator[None]:
    """Make modules compute with these forwards between the input and output that nnsight shows to a
    trace, so that writes to either take effect.

    A module whose operations a trace reads (`.source`) keeps its own forward, since nnsight
    replaces this one with it.
    """
    states = [(child.__dict__[STATE], forward) for child, forward in forwards.items()]
    before = [(state.body, state.sourced, state.compiled) for state, _ in states]
    for state, forward in states:
        state.body, state.sourced, state.compiled = _body(forward), False, None
    try:
        yield
    finally:  # a function that fails in this run is called again in another
        for (state, _), own in zip(states, before, strict=True):
            state.body, state.sourced, state.compiled = own


def _body(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that drops the module, which nnsight passes as the first argument."""
    return lambda _, *args, **kwargs: forward(*args, **kwargs)

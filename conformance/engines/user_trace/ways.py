"""The honest ways of computing the same under nnsight: attention, order of addition, roundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.source import STATE, Controller
from torch.nn import Module

from conformance.engines.reference.ensemble import split_reductions
from conformance.engines.reference.fused import fused


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
    with ExitStack() as stack:
        if way.fused:
            stack.enter_context(_fused_below(module))
        if way.split:
            stack.enter_context(split_reductions(module))
        yield


@contextmanager
def _fused_below(module: Module) -> Iterator[None]:
    """Fewer roundings below nnsight, whose own forward of each module stays in its place: with
    another one there a trace would wait for the module in vain.
    """
    controllers = {
        child: child.__dict__.pop("forward")
        for child in module.modules()
        if isinstance(child.__dict__.get("forward"), Controller)
    }
    try:
        with fused(module), _bodies_of(controllers):
            yield
    finally:  # a function that fails in this way is called again in another
        for child, controller in controllers.items():
            child.__dict__["forward"] = controller


@contextmanager
def _bodies_of(controllers: Mapping[Module, Controller]) -> Iterator[None]:
    """What was put in the place of these modules' forwards becomes what nnsight runs as theirs."""
    own = {child: child.__dict__.pop("forward", None) for child in controllers}
    bodies = {}
    for child, controller in controllers.items():
        child.__dict__["forward"] = controller
        forward = own[child]
        if forward is not None:
            state = child.__dict__[STATE]
            bodies[child] = state.body
            state.body = _body(forward)
    try:
        yield
    finally:
        for child, body in bodies.items():
            child.__dict__[STATE].body = body


def _body(forward: Callable[..., Any]) -> Callable[..., Any]:
    """nnsight hands the module to the body of its forward."""

    def body(_: Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return body

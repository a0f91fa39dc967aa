"""Which fault is switched on in this process; one at a time, none most of the time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conformance.selftest.fault import Moment, Point, Variant


@dataclass(frozen=True)
class Traced:
    """What a process must know of the traced model: where the list of its layers is, and how
    their outputs hold the stream.
    """

    path: str = ""
    layout: str = ""


@dataclass
class Armed:
    """A variant in force, and what it needs to know of this process."""

    variant: Variant
    layers: int
    stage: int = 0
    stages: int = 1
    noise: tuple[float, ...] = ()
    model: Traced = Traced()
    memory: dict[Any, Any] = field(default_factory=dict)
    handles: list[Any] = field(default_factory=list)
    written: set[int] = field(default_factory=set)

    def moment(self, layer: int | None = None, raw: Callable[[], Any] = lambda: None) -> Moment:
        return Moment(
            at=self.variant.at(self.layers),
            dose=self.variant.dose,
            layer=layer,
            layers=self.layers,
            stage=self.stage,
            stages=self.stages,
            raw=raw,
            noise=self.noise,
            memory=self.memory,
            written=self.written,
        )


class _Switch:
    armed: Armed | None = None


_SWITCH = _Switch()


def arm(armed: Armed) -> None:
    """Switch a fault on; what was on is switched off first."""
    disarm()
    _SWITCH.armed = armed


def disarm() -> None:
    """Switch the fault off and take its hooks out of the model."""
    armed, _SWITCH.armed = _SWITCH.armed, None
    for handle in armed.handles if armed else ():
        handle.remove()


def acts(point: Point) -> bool:
    """Whether the fault that is on acts at this point."""
    return _SWITCH.armed is not None and _SWITCH.armed.variant.fault.point is point


def layer_of(location: str, what: str = "output") -> int | None:
    """The layer whose output (or input) nnsight calls so; None for every other value."""
    path = _SWITCH.armed.model.path if _SWITCH.armed else ""
    match = re.search(rf"(?:^|\.){re.escape(path)}\.(\d+)\.{what}$", location) if path else None
    return int(match.group(1)) if match else None


def written(location: str) -> int | None:
    """The layer that a block writes to there, which the fault that is on may know from now on."""
    layer = layer_of(location)
    if _SWITCH.armed is not None and layer is not None:
        _SWITCH.armed.written.add(layer)
    return layer


def layout() -> str:
    """How a layer's output holds the stream."""
    return _SWITCH.armed.model.layout if _SWITCH.armed else ""


def passes(
    point: Point,
    value: Any,
    layer: int | None = None,
    raw: Callable[[], Any] = lambda: None,
) -> Any:
    """What comes out of a hook point: the value itself, or what the fault makes of it."""
    armed = _SWITCH.armed
    if armed is None or armed.variant.fault.point is not point:
        return value
    return armed.variant.fault.act(value, armed.moment(layer, raw))

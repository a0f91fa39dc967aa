"""The fault that is switched on in this process: at most one at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.commands.selftest.fault import Moment, Point, Variant


@dataclass
class Armed:
    """The active variant, the moment between its actions, and what identifies the traced model's
    layers: their path, and the layout of their outputs.
    """

    variant: Variant
    moment: Moment
    path: str = ""
    layout: str = ""
    handles: list[Any] = field(default_factory=list)


class _Switch:
    armed: Armed | None = None


_SWITCH = _Switch()


def arm(armed: Armed) -> None:
    """Switch a fault on, after switching the previous one off."""
    disarm()
    _SWITCH.armed = armed


def disarm() -> None:
    """Switch the fault off and remove its hooks from the model."""
    armed, _SWITCH.armed = _SWITCH.armed, None
    for handle in armed.handles if armed else ():
        handle.remove()


def acts(point: Point) -> bool:
    """Return whether the active fault acts at this point."""
    return _SWITCH.armed is not None and _SWITCH.armed.variant.fault.point is point


def layer_of(location: str, what: str = "output") -> int | None:
    """Return the layer whose output (or input) has this name in nnsight; None for other values."""
    path = _SWITCH.armed.path if _SWITCH.armed else ""
    match = re.search(rf"(?:^|\.){re.escape(path)}\.(\d+)\.{what}$", location) if path else None
    return int(match.group(1)) if match else None


def written(location: str) -> int | None:
    """Return the layer that a block writes at this location, and record it for the active fault."""
    layer = layer_of(location)
    if _SWITCH.armed is not None and layer is not None:
        _SWITCH.armed.moment.written.add(layer)
    return layer


def layout() -> str:
    """Return the layout: how a layer's output holds the stream."""
    return _SWITCH.armed.layout if _SWITCH.armed else ""


def passes(
    point: Point,
    value: Any,
    layer: int | None = None,
    raw: Callable[[], Any] = lambda: None,
) -> Any:
    """Return the value after a hook point: unchanged, or as the active fault changes it."""
    armed = _SWITCH.armed
    if armed is None or armed.variant.fault.point is not point:
        return value
    fault, moment = armed.variant.fault, replace(armed.moment, layer=layer, raw=raw)
    return fault.act(value, moment) if moment.acts_here or fault.everywhere else value

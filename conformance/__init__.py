"""What a scenario's author imports (docs/scenarios.md), and the Python API (docs/api.md)."""

import importlib
from typing import TYPE_CHECKING, Any

from conformance.authoring import LM, Case, Edit, Layer, Layers, Part, Reference, Run
from conformance.scenario import PAIR, scenario

#: The version of sources that were never built: nobody knows which they are.
UNBUILT = "0+unknown"

try:
    from conformance import _version

    __version__: str = _version.version
except ImportError:
    __version__ = UNBUILT

if TYPE_CHECKING:
    from conformance.api import NotSame, assert_same, compare, results, run

__all__ = [
    "LM",
    "PAIR",
    "Case",
    "Edit",
    "Layer",
    "Layers",
    "NotSame",
    "Part",
    "Reference",
    "Run",
    "assert_same",
    "compare",
    "results",
    "run",
    "scenario",
]

_API = ("NotSame", "assert_same", "compare", "results", "run")


def __getattr__(name: str) -> Any:
    """The API, imported when it is asked for: a scenario's file needs none of it."""
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("conformance.api"), name)

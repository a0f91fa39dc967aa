"""The names that a scenario imports (docs/scenarios.md), and the Python API (docs/api.md)."""

import importlib
from typing import TYPE_CHECKING, Any

from conformance.spec.authoring import LM, Case, Edit, Layer, Layers, Part, Reference, Run
from conformance.spec.scenario import PAIR, scenario

#: The version of a source tree that was never built, and whose version is therefore unknown.
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
    """Import a name of the API on first use: a scenario's file does not need it."""
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("conformance.api"), name)

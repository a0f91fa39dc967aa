"""What a scenario author imports: see docs/scenarios.md."""

from conformance.authoring import LM, Case, Edit, Layer, Layers, Part, Reference, Run
from conformance.scenario import PAIR, scenario

__all__ = [
    "LM",
    "PAIR",
    "Case",
    "Edit",
    "Layer",
    "Layers",
    "Part",
    "Reference",
    "Run",
    "scenario",
]
__version__ = "0.1.0"

"""What a scenario author imports."""

from conformance.scenario import PAIR, scenario

__all__ = ["PAIR", "scenario"]
__version__ = "0.1.0"

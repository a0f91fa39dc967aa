"""Decide whether a run may pass. Only `check`, `repeat` and `files` have side effects.

`repeat` alone starts engines, so import it from its module.
"""

from conformance.commands.gate.decide import Decision, Repeat, check, decide
from conformance.commands.gate.files import write
from conformance.commands.gate.summary import document, headline

__all__ = ["Decision", "Repeat", "check", "decide", "document", "headline", "write"]

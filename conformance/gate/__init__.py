"""A run and its expectations → may this pass? Pure but for `check`, `repeat` and `files`.

`repeat`, which alone starts engines, is imported by whoever wants it.
"""

from conformance.expectations.entries import refuse_unmatched
from conformance.gate.check import Repeat, check
from conformance.gate.decide import Decision, decide
from conformance.gate.files import write
from conformance.gate.summary import document, headline

__all__ = [
    "Decision",
    "Repeat",
    "check",
    "decide",
    "document",
    "headline",
    "refuse_unmatched",
    "write",
]

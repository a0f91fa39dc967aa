"""The result of running an engine without nnsight."""

from __future__ import annotations

from conformance.records import record


@record()
class Plain:
    """Whether the engine by itself agrees with the reference, and why.

    Compared are its own tokens and log-probabilities and, if `streams`, what plain hooks read after
    its layers. `confirmed` says why the reference's definition of the model can be trusted, "" if
    it cannot: an engine that disagrees then deviates from its own definition.
    """

    agrees: bool
    evidence: str
    streams: bool = False
    confirmed: str = ""

"""What an engine does by itself, without nnsight."""

from __future__ import annotations

from conformance.records import record


@record()
class Plain:
    """Its own tokens and log-probabilities, and (`streams`) what plain hooks see after its layers.

    `confirmed` says in words why the definition that the truth has of the model is not in
    question, "" where it is: an engine that differs then deviates from its own definition.
    """

    agrees: bool
    evidence: str
    streams: bool = False
    confirmed: str = ""

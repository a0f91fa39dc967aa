"""Expected failures: the entries of known.yaml, and how a run compares with them."""

from conformance.expectations.assess import (
    Assessed,
    Standing,
    assess,
    standing,
)
from conformance.expectations.conclusion import (
    Conclusion,
    conclude,
    concluded,
    conclusion_of,
    finding_of,
    marked,
    with_findings,
)
from conformance.expectations.conditions import Conditions, Where, where_of
from conformance.expectations.entries import (
    Entry,
    KnownGaps,
    Match,
    inherited,
    load,
    matching_nothing,
)
from conformance.expectations.update import Update, difference, update
from conformance.records import Finding

__all__ = [
    "Assessed",
    "Conclusion",
    "Conditions",
    "Entry",
    "Finding",
    "KnownGaps",
    "Match",
    "Standing",
    "Update",
    "Where",
    "assess",
    "conclude",
    "concluded",
    "conclusion_of",
    "difference",
    "finding_of",
    "inherited",
    "load",
    "marked",
    "matching_nothing",
    "standing",
    "update",
    "where_of",
    "with_findings",
]

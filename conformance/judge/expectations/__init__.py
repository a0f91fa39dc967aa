"""Expected failures: the entries of known.yaml, and how a run compares with them."""

from conformance.judge.expectations.assess import Assessed, Standing, assess, standing
from conformance.judge.expectations.conclusion import (
    Conclusion,
    conclude,
    concluded,
    conclusion_of,
    finding_of,
    marked,
    with_findings,
)
from conformance.judge.expectations.conditions import Conditions, Where, where_of
from conformance.judge.expectations.entries import (
    Entry,
    KnownGaps,
    Match,
    expected,
    inherited,
    load,
    matching_nothing,
)
from conformance.judge.expectations.update import Update, difference, update
from conformance.spec.records import Finding

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
    "expected",
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

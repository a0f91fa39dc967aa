"""Expected failures: the entries of known.yaml, and how a run compares with them."""

from conformance.judge.expectations.assess import Assessed, Standing, assess, assess_entries
from conformance.judge.expectations.conclusion import (
    Conclusion,
    add_exit_code,
    conclude,
    conclusion_of,
    finding_of,
    mark_findings,
)
from conformance.judge.expectations.conditions import Conditions, where_of
from conformance.judge.expectations.entries import (
    Entry,
    KnownGaps,
    Match,
    find_unmatched,
    load,
    load_expectations,
    load_inherited,
)
from conformance.judge.expectations.update import difference, update
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
    "add_exit_code",
    "assess",
    "assess_entries",
    "conclude",
    "conclusion_of",
    "difference",
    "find_unmatched",
    "finding_of",
    "load",
    "load_expectations",
    "load_inherited",
    "mark_findings",
    "update",
    "where_of",
]

"""What is expected not to pass: the entries of known.yaml, and what a run makes of them."""

from conformance.expectations.assess import (
    Assessed,
    Finding,
    Standing,
    Where,
    assess,
    standing,
    where_of,
)
from conformance.expectations.entries import Conditions, Entry, Known, Match, load, matching_nothing
from conformance.expectations.marking import expected
from conformance.expectations.update import Update, difference, update

__all__ = [
    "Assessed",
    "Conditions",
    "Entry",
    "Finding",
    "Known",
    "Match",
    "Standing",
    "Update",
    "Where",
    "assess",
    "difference",
    "expected",
    "load",
    "matching_nothing",
    "standing",
    "update",
    "where_of",
]

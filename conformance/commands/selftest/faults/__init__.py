"""Every fault by its id, in the order of the table."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.commands.selftest.fault import Fault
from conformance.commands.selftest.faults import (
    arriving,
    forward,
    neighbours,
    parts,
    processes,
    quiet,
    reads,
    relay,
    returned,
    sampled,
    traces,
    writes,
)

_MODULES = (
    quiet,
    reads,
    parts,
    returned,
    traces,
    writes,
    arriving,
    neighbours,
    forward,
    sampled,
    processes,
    relay,
)

FAULTS: Mapping[str, Fault] = {
    fault.id: fault for module in _MODULES for family in module.FAMILIES for fault in family.faults
}

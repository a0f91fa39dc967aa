"""Every fault by its id, in the order of the table."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.commands.selftest.fault import Fault, FaultFamily
from conformance.commands.selftest.faults import (
    arriving,
    forward,
    neighbours,
    parts,
    processes,
    reads,
    relay,
    returned,
    traces,
    writes,
)

_MODULES = (
    *(processes, reads, parts, returned, traces),
    *(writes, arriving, neighbours, forward, relay),
)

FAULTS: Mapping[str, Fault] = {
    fault.id: fault
    for module in _MODULES
    for family in vars(module).values()
    if isinstance(family, FaultFamily)
    for fault in family.faults
}

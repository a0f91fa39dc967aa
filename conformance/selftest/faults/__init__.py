"""Every fault by its id, in the order of the table."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.selftest.fault import Fault
from conformance.selftest.faults import (
    arriving,
    attention,
    computed,
    draws,
    extraction,
    forward,
    logits,
    neighbours,
    processes,
    quiet,
    raw,
    reads,
    relay,
    returned,
    sampled,
    traces,
    weights,
    writes,
)

_MODULES = (
    quiet,
    reads,
    attention,
    extraction,
    logits,
    returned,
    traces,
    draws,
    neighbours,
    raw,
    writes,
    arriving,
    forward,
    computed,
    sampled,
    weights,
    relay,
    processes,
)

FAULTS: Mapping[str, Fault] = {fault.id: fault for module in _MODULES for fault in module.FAULTS}

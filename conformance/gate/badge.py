"""Render the gate's decision as a badge: the JSON that shields.io's endpoint reads."""

from __future__ import annotations

import json

from conformance.errors import ExitCode
from conformance.expectations import Finding
from conformance.gate.decide import Decision


def badge(decision: Decision) -> str:
    """Return JSON with the `schemaVersion`, `label`, `message` and `color` of the endpoint."""
    counts = decision.counts
    message = f"{counts.get(Finding.PASSED, 0)} of {len(decision.assessed)} pass"
    for finding in (
        Finding.KNOWN,
        Finding.UNEXPECTED,
        Finding.STALE,
        Finding.EXPIRED,
        Finding.FLAKY,
    ):
        if counts.get(finding):
            message += f", {counts[finding]} {finding.value}"
    if decision.conclusion.moved:
        message += f", not requested: {'; '.join(decision.conclusion.moved)}"
    color = "brightgreen" if not counts.get(Finding.FLAKY) else "yellow"
    if decision.exit_code is ExitCode.UNEXPECTED:
        color = "red"
    shield: dict[str, object] = {"schemaVersion": 1, "label": "conformance", "message": message}
    if decision.exit_code is ExitCode.HARNESS:
        shield |= {"message": "the harness failed", "isError": True}
        color = "lightgrey"
    return json.dumps({**shield, "color": color}, indent=1) + "\n"

"""Interventions across pipeline stages, for an nnsight without pipeline support.

Every stage runs every block. The stage that owns a location serves it and records the visit. The
record is sent with the step, and the other stages replay it. So the last stage's copy of a block
sees the whole run, and only that stage reports what was saved.

A block therefore runs once per stage. It must depend only on the values it reads, not on the
process it runs in: process ids, clocks, files and other libraries' random states differ between
stages. Torch's and Python's random numbers agree. If an edit differs between stages, an error is
raised.
"""

from __future__ import annotations

import importlib.util


def native_support() -> bool:
    """Return whether the installed nnsight supports pipeline parallelism."""
    if importlib.util.find_spec("nnsight") is None:
        return False
    return importlib.util.find_spec("nnsight.modeling.vllm.pp_interleaver") is not None


def relay_needed(pipeline: int, transport: str = "auto") -> bool:
    """Return whether the relay serves an engine of ``pipeline`` stages: if there are several, and
    it is requested or nnsight has no pipeline support.
    """
    wanted = transport == "relay" or (transport == "auto" and not native_support())
    return pipeline > 1 and wanted

"""Interventions across pipeline stages, for an nnsight that cannot do it itself.

Every stage runs every block. The stage that owns a location serves it and notes the visit;
the note travels with the step, and the other stages replay it. So the last stage's copy of a
block sees the whole run, and only that stage reports what was saved.

A block therefore runs once per stage. What it does must follow from the values it reads, not
from the process it runs in: ids of processes, clocks, files and other libraries' random
states differ between stages. Torch's and Python's random numbers agree. An edit that differs
between stages is noticed and raised.
"""

from __future__ import annotations

import importlib.util


def native_support() -> bool:
    """Whether the installed nnsight has pipeline support of its own."""
    if importlib.util.find_spec("nnsight") is None:
        return False
    return importlib.util.find_spec("nnsight.modeling.vllm.pp_interleaver") is not None


def relay_needed(pipeline: int, transport: str = "auto") -> bool:
    """Whether an engine of ``pipeline`` stages is served by the relay: where there are several,
    and it was asked for, or nnsight has nothing of its own.
    """
    wanted = transport == "relay" or (transport == "auto" and not native_support())
    return pipeline > 1 and wanted

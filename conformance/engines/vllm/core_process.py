"""The location of vLLM's engine core, which schedules the requests of each step.

In a separate process, the core starts with a trace's first request while others are still arriving,
so the batch size depends on timing. On a GPU, a row's last bits depend on the number of rows. In
the client's process, all requests of a trace are present before its first step.
"""

from __future__ import annotations

import os
from typing import Any


def keep_here() -> None:
    """Keep later engines' cores here: vLLM cannot send functions to a core elsewhere."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def core_here(entry: Any) -> Any:
    """Return the core behind an `LLM`, or None if it is in another process or behind a server, for
    which nnsight's model has no entry point.
    """
    client = getattr(getattr(entry, "llm_engine", entry), "engine_core", None)
    return getattr(client, "engine_core", None)

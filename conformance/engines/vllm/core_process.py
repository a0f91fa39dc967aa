"""Where vLLM's core is: it takes the requests and says which of them a step computes.

In a process of its own it begins with the first request of a trace while the others are still on
their way, so that how many a step takes is a matter of time; and on a GPU the numbers of a row
depend, in their last bits, on how many rows there are. In the process that asks, all requests of a
trace are there before its first step.
"""

from __future__ import annotations

import os
from typing import Any


def keep_here() -> None:
    """For engines that are opened from now on. Nor does vLLM take functions to a core elsewhere."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def core_here(entry: Any) -> Any:
    """The core behind an `LLM`; None where it is in a process of its own, or behind a server, of
    which nnsight's model has no entry.
    """
    client = getattr(getattr(entry, "llm_engine", entry), "engine_core", None)
    return getattr(client, "engine_core", None)

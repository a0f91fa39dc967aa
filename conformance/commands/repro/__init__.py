"""Export one cell of a run as a script to attach to an issue or to debug, or as an issue text.

A script holds the trace, its meaning in plain PyTorch, and the case's data. It calls `rerun`, which
gathers and judges the cell as any run does, so there is no second judge.
"""

from enum import StrEnum


class UpstreamProject(StrEnum):
    """A project that an issue can be written to."""

    NNSIGHT = "nnsight"
    VLLM = "vLLM"
    TRANSFORMERS = "transformers"

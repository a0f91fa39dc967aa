"""The projects an issue can be written to. The command line imports this without anything else."""

from enum import StrEnum


class UpstreamProject(StrEnum):
    """An upstream project."""

    NNSIGHT = "nnsight"
    VLLM = "vLLM"
    TRANSFORMERS = "transformers"

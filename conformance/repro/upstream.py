"""Whom a text is written to; here, as the command line names them before it imports anything."""

from enum import StrEnum


class Project(StrEnum):
    """A project upstream."""

    NNSIGHT = "nnsight"
    VLLM = "vLLM"
    TRANSFORMERS = "transformers"

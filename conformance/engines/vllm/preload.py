"""What a zygote for the vLLM engines imports before it forks workers."""

# ruff: noqa: E402, F401 - imported for their effect, after vLLM's settings
from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from conformance.engines import set_environment
from conformance.engines.vllm import cpu

# Before vLLM, which reads its environment when it is imported.
set_environment()
cpu.import_everything()

from vllm.model_executor.models import registry
from vllm.platforms import current_platform

import conformance.engines.vllm.engine
from conformance.engines.forkable import require_forkable

T = TypeVar("T")


def _inspect_here(question: Callable[[], T]) -> T:
    return question()


if current_platform.is_cpu():
    # vLLM asks each model class what it supports in a fresh process, 12 s of imports, so as
    # not to touch a GPU in this one. Here there is none, and the imports are done.
    registry._run_in_subprocess = _inspect_here

require_forkable("vLLM and nnsight")

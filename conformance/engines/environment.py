"""Environment variables of every worker: read when libraries are imported or start processes.

Nothing is imported here, so that the parent can name them when it starts a worker.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

ENVIRONMENT = {
    # The default binding refuses two stages on one memory node of two cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # One thread a worker, and no pool that a fork would lose.
    "OMP_NUM_THREADS": "1",
    # The client and the worker build the same model; only the V1 runner is instrumented.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Ask for GPUs without opening CUDA's driver, which a forked process could not use: engines
    # ask before they load vLLM (which sets this, too), and vLLM forks its own processes.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def set_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what is not set yet; a value chosen by the caller stays."""
    for name, value in ENVIRONMENT.items():
        environment.setdefault(name, value)

"""True float32 multiplication: on CUDA, no engine may multiply float32 in fewer bits.

An H200's matrix units compute float32 as TF32, with ten fraction bits, where that is allowed.
torch's switches control the libraries. Triton kernels, such as vLLM's attention and experts, use
TF32 unless Triton is configured before it compiles them.
"""

from __future__ import annotations

import os
from typing import Any

from conformance.spec.records import Precision

#: The engine's own processes inherit and read these too.
WHOLE = {
    "TRITON_F32_DEFAULT": "ieee",
    "NVIDIA_TF32_OVERRIDE": "0",
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
}


def whole_products(precision: Precision) -> None:
    """Make this process and its children multiply float32 as float32 if `precision` is float32. In
    bf16, keep the libraries' defaults.
    """
    if precision is not Precision.FLOAT32:
        return
    import torch  # not at the top: engines in bf16 and some tests do not need torch here

    os.environ.update(WHOLE)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def products() -> str:
    """Return "ieee" if this process multiplies float32 in full, or "tf32" if it may round more."""
    import torch

    exact = all(os.environ.get(name) == value for name, value in WHOLE.items())
    # Not `allow_tf32`: it raises if others, such as vLLM's batch-invariant mode, set these.
    cudnn: Any = torch.backends.cudnn  # torch declares no types for its operations
    switches = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    rounded = any(switch.fp32_precision not in ("none", "ieee") for switch in switches)
    return "ieee" if exact and not rounded else "tf32"

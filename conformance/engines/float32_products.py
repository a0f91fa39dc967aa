"""Float32 that is float32: on CUDA no product of an engine in fewer bits.

An H200's matrix units take float32 as TF32, with ten bits of a fraction, where they are let.
Libraries are held to float32 by torch's switches; kernels written in Triton, vLLM's attention and
its experts among them, take TF32 unless Triton is told otherwise before it compiles them.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from conformance.records import Precision

#: Read by the engine's own processes, too, which inherit them.
WHOLE = {
    "TRITON_F32_DEFAULT": "ieee",
    "NVIDIA_TF32_OVERRIDE": "0",
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
}


def whole_products(
    precision: Precision, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Let this process and those that it starts multiply float32 as float32, where an engine of
    `precision` is to be opened in it. In bf16 everything stays as people run it.
    """
    if precision is not Precision.FLOAT32:
        return
    import torch  # which an engine in bf16 need not have imported, nor one of the tests

    environment.update(WHOLE)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def products() -> str:
    """How this process multiplies float32: "ieee", or "tf32" where something may round more."""
    import torch

    exact = all(os.environ.get(name) == value for name, value in WHOLE.items())
    rounded = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    return "ieee" if exact and not rounded else "tf32"

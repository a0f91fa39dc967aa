"""The messages by which vLLM and nnsight say that they do not support something.

The message becomes the reason of a refusal; any other exception is an error.
"""

from __future__ import annotations

from conformance.engines import Refused
from conformance.errors import described

REFUSALS = (
    "Pipeline parallelism is not supported for this model",
    # nnsight 0.8.1 answers every block on several stages with this (facts: PP=2).
    "UnknownPersistentIdError",
    # nnsight's answers, on a streaming engine, to several prompts in one trace and to a registered
    # block.
    "Async tracing takes a single prompt",
    "on an async engine",
    # nnsight's answer to a block on a prompt that one step cannot hold.
    "so no block could see it whole",
    "is greater than the derived max_model_len",
    # The answer of nnsight's own pipeline support (its pull request 691) to reading a weight of, or
    # calling, a module on another stage.
    "can be read and written from any stage",
    # vLLM's answer to extracting hidden states from a model that does not return them.
    "Model does not support EAGLE3 interface",
    # Answers to float32 by vLLM's linear attention on a CPU, its selection of attention backends,
    # and FlashAttention; FlexAttention's answer to a soft cap.
    "requires BF16",
    "dtype not supported",
    "only support fp16 and bf16",
    "does not support logits soft cap",
    # vLLM's answer to quantized weights without a kernel on this machine.
    "Failed to find a kernel that can implement",
    # Raised by vLLM's latent attention for AMX, which vLLM also selects for float32.
    "expect weight to be bfloat16",
    # Marlin's answer to float32, which it cannot output.
    "c must be passed for W4A8-FP4",
    # Answers to float32 inputs or adapter weights by vLLM's LoRA kernels on CUDA.
    ".dtype in [torch.float16, torch.bfloat16]",
    # torch's answer to float32 in vLLM's kernel for packed weights, which takes other dtypes.
    "not implemented for 'Float'",
    # torch's answer to vLLM's linear attention in bf16, on a CPU without AVX-512.
    "BFloat16 Brgemm VNNI format is only supported",
)


def refused(error: BaseException) -> Refused | None:
    """Return the error as a refusal if vLLM or nnsight says that it does not support this."""
    return refusal(described(error))


def refusal(words: str) -> Refused | None:
    """Return the first line that is a refusal, or None."""
    lines = (line.strip() for line in words.splitlines() if any(r in line for r in REFUSALS))
    line = next(lines, "")
    return Refused(line) if line else None

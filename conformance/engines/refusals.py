"""What vLLM and nnsight say when they do not support what is asked of them.

Their words are kept as the reason; anything else that goes wrong is an error.
"""

from __future__ import annotations

from conformance.engines import Refused
from conformance.errors import described

REFUSALS = (
    "Pipeline parallelism is not supported for this model",
    # nnsight 0.8.1 answers every block on several stages so (facts: PP=2).
    "UnknownPersistentIdError",
    # nnsight's answers to several prompts in one trace, and to a registered block, on a
    # streaming engine.
    "Async tracing takes a single prompt",
    "on an async engine",
    # nnsight's answer to a block on a prompt that one step cannot hold.
    "so no block could see it whole",
    "is greater than the derived max_model_len",
    # What nnsight's own pipeline support (its pull request 691) answers to a weight, or to a call,
    # of a module on another stage.
    "can be read and written from any stage",
    # vLLM's answer to an extraction from a model that does not hand its states out.
    "Model does not support EAGLE3 interface",
    # Answers to float32: of vLLM's linear attention on a CPU, of its choice among attention
    # backends, of FlashAttention, and of FlexAttention to a soft cap.
    "requires BF16",
    "dtype not supported",
    "only support fp16 and bf16",
    "does not support logits soft cap",
    # vLLM's answer to weights of few bits that it has no product for on this machine.
    "Failed to find a kernel that can implement",
    # vLLM's latent attention for AMX, which it takes for float32 as well.
    "expect weight to be bfloat16",
    # Marlin's answer to float32, for which it has no output.
    "c must be passed for W4A8-FP4",
    # The answer to float32 of vLLM's kernels for adapters on CUDA: of what they are given, or of
    # the adapter's weights.
    ".dtype in [torch.float16, torch.bfloat16]",
    # torch's answer to float32 from a kernel for other types: vLLM's product of packed weights.
    "not implemented for 'Float'",
    # torch's answer to vLLM's linear attention in bf16, on a CPU without AVX-512.
    "BFloat16 Brgemm VNNI format is only supported",
)


def refused(error: BaseException) -> Refused | None:
    """The error as a refusal, when vLLM or nnsight says that it does not do this."""
    return refusal(described(error))


def refusal(words: str) -> Refused | None:
    """The line of these words that refuses."""
    lines = (line.strip() for line in words.splitlines() if any(r in line for r in REFUSALS))
    line = next(lines, "")
    return Refused(line) if line else None

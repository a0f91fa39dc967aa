"""What vLLM samples greedily, with every log-probability: asking for it, and reading it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def asked_alone(steps: int, **more: Any) -> Any:
    """What vLLM is asked for where there is no trace: so many tokens, and every log-probability."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0.0,
        max_tokens=steps,
        ignore_eos=True,
        logprobs=-1,
        flat_logprobs=True,
        detokenize=False,
        **more,
    )


def own_words(output: Any) -> dict[str, list[Tensor]]:
    """One request's tokens and log-probabilities, float32 [vocabulary] a step."""
    flat = output.logprobs
    logits = []
    for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
        ids = torch.tensor(flat.token_ids[start:end])
        step = torch.empty(int(ids.max()) + 1)
        step[ids] = torch.tensor(flat.logprobs[start:end])
        logits.append(step)
    tokens = [torch.tensor([token]) for token in output.token_ids]
    return {"logits": logits, "tokens": tokens}

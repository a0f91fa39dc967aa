"""What vLLM samples greedily, with every log-probability: asking for it, and reading it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.engines.lm import LogProbabilities


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


def asked_for_logprobs(steps: int, top: int, temperature: float, seed: int | None) -> Any:
    """What vLLM is asked for where the log-probabilities of a prompt and of so many tokens count,
    and those of the `top` likeliest besides.
    """
    from vllm import SamplingParams

    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=steps,
        ignore_eos=True,
        logprobs=top,
        prompt_logprobs=0,
        detokenize=False,
    )


def own_logprobs(output: Any, top: int) -> LogProbabilities:
    """What one request was answered. The first token of a prompt follows from nothing."""
    ids = output.prompt_token_ids[1:]
    pairs = zip(ids, output.prompt_logprobs[1:], strict=True)
    prompt = [step[token].logprob for token, step in pairs]
    completion = output.outputs[0]
    steps = list(zip(completion.token_ids, completion.logprobs, strict=True))
    return LogProbabilities(
        prompt=torch.tensor(prompt)[:, None],
        chosen=[torch.tensor([step[token].logprob]) for token, step in steps],
        top=[
            torch.tensor([one.logprob for one in step.values() if one.rank <= top]).sort(
                descending=True
            )[0]
            for _, step in steps
        ],
        ids=[torch.tensor([token]) for token, _ in steps],
    )

"""Sampling parameters for requests with log-probabilities, and reading their outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.engines.lm import UntracedLogProbabilities


def asked_alone(steps: int, **more: Any) -> Any:
    """Return greedy parameters for requests without a trace, with every log-probability."""
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
    """Return a request's tokens and log-probabilities, float32 [vocabulary] for each step."""
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
    """Return sampling parameters that request the log-probabilities of a prompt, of `steps`
    generated tokens, and of the `top` likeliest tokens.
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


def own_logprobs(output: Any, top: int) -> UntracedLogProbabilities:
    """Return one request's log-probabilities. A prompt's first token has none."""
    ids = output.prompt_token_ids[1:]
    pairs = zip(ids, output.prompt_logprobs[1:], strict=True)
    prompt = [step[token].logprob for token, step in pairs]
    completion = output.outputs[0]
    steps = list(zip(completion.token_ids, completion.logprobs, strict=True))
    return UntracedLogProbabilities(
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

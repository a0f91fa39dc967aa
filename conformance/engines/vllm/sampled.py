"""Sampling parameters for requests without a trace, and reading their outputs.

It imports no nnsight: a library without it uses these too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.engines.lm import UntracedLogProbabilities


def _parameters(steps: int, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(max_tokens=steps, ignore_eos=True, detokenize=False, **more)


def make_untraced_parameters(steps: int, **more: Any) -> Any:
    """Return greedy parameters for requests without a trace, with every log-probability."""
    return _parameters(steps, temperature=0.0, logprobs=-1, flat_logprobs=True, **more)


def parse_output(output: Any) -> dict[str, list[Tensor]]:
    """Return a request's tokens and log-probabilities, float32 [vocabulary] for each step."""
    flat = output.logprobs
    logits = []
    for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
        ids = torch.tensor(flat.token_ids[start:end])
        step = torch.empty(int(ids.max()) + 1)
        step[ids] = torch.tensor(flat.logprobs[start:end])
        logits.append(step)
    return {"logits": logits, "tokens": [torch.tensor([token]) for token in output.token_ids]}


def make_logprob_parameters(steps: int, top: int, temperature: float, seed: int | None) -> Any:
    """Return sampling parameters that request the log-probabilities of a prompt, of `steps`
    generated tokens, and of the `top` likeliest tokens.
    """
    return _parameters(steps, temperature=temperature, seed=seed, logprobs=top, prompt_logprobs=0)


def own_logprobs(output: Any, top: int) -> UntracedLogProbabilities:
    """Return one request's log-probabilities. A prompt's first token has none."""
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    completion = output.outputs[0]
    steps = list(zip(completion.token_ids, completion.logprobs, strict=True))
    likeliest = [[one.logprob for one in step.values() if one.rank <= top] for _, step in steps]
    return UntracedLogProbabilities(
        prompt=torch.tensor([step[token].logprob for token, step in pairs])[:, None],
        chosen=[torch.tensor([step[token].logprob]) for token, step in steps],
        top=[torch.tensor(sorted(found, reverse=True)) for found in likeliest],
        ids=[torch.tensor([token]) for token, _ in steps],
    )

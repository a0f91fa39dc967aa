"""How vLLM's sampler counts the ranks of tokens, which are asked for with log-probabilities."""

from __future__ import annotations


def count_as_written() -> None:
    """Run the count as it is written. vLLM compiles it, for some ten seconds in every process."""
    from vllm.v1.sample import sampler

    compiled = sampler.batched_count_greater_than
    sampler.batched_count_greater_than = getattr(compiled, "_torchdynamo_orig_callable", compiled)

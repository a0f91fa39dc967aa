"""Log-probabilities as vLLM answers them: of the prompt but its first token, of each step's token,
and of the likeliest.
"""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from conformance.engines.vllm.sampled import own_logprobs


def said(**by_token):
    """One position: the log-probability and the rank of some tokens."""
    return {
        int(name.removeprefix("t")): SimpleNamespace(logprob=logprob, rank=rank)
        for name, (logprob, rank) in by_token.items()
    }


def test_what_was_drawn_is_no_member_of_the_likeliest_unless_it_is_one():
    step = said(t4=(-0.5, 1), t2=(-1.5, 2), t9=(-7.0, 40))
    output = SimpleNamespace(
        prompt_token_ids=[3, 5, 4],
        prompt_logprobs=[None, said(t5=(-2.0, 3), t1=(-0.1, 1)), said(t4=(-3.0, 2))],
        outputs=[SimpleNamespace(token_ids=[9], logprobs=[step])],
    )
    answer = own_logprobs(output, top=2)
    assert answer.prompt.tolist() == [[-2.0], [-3.0]]
    assert [one.tolist() for one in answer.chosen] == [[-7.0]]
    assert [one.tolist() for one in answer.top] == [[-0.5, -1.5]]
    assert [one.tolist() for one in answer.ids] == [[9]]
    assert answer.ids[0].dtype is torch.int64

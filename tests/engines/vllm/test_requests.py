"""Requests that a client aborts: which, when, and that nothing is aborted that has ended. And the
log-probabilities that vLLM answers with.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.engines.vllm import requests
from conformance.engines.vllm.async_engine import saved
from conformance.engines.vllm.sampled import own_logprobs


class Engine:
    """Gives each of its requests a token a step, until it has what it asks for."""

    def __init__(self, **most: int) -> None:
        self.most, self.had = most, dict.fromkeys(most, 0)
        self.output_processor = SimpleNamespace(request_states={})
        for name in most:
            tokens = SimpleNamespace(num_output_tokens=lambda name=name: self.had[name])
            self.output_processor.request_states[name] = SimpleNamespace(detokenizer=tokens)

    def step(self) -> list[str]:
        states = self.output_processor.request_states
        for name in list(states):
            self.had[name] += 1
            if self.had[name] == self.most[name]:
                del states[name]
        return []

    def abort_request(self, names: list[str], *, internal: bool) -> None:
        assert internal
        for name in names:
            del self.output_processor.request_states[name]

    def generate(self) -> None:
        while self.output_processor.request_states:
            self.step()


def test_one_request_is_aborted_and_the_others_run_to_their_end():
    engine = Engine(first=4, second=9, third=6)
    with requests.aborting(engine, 1, after=2):
        engine.generate()
    assert engine.had == {"first": 4, "second": 2, "third": 6}
    assert "step" not in vars(engine)


def test_where_the_request_has_ended_before_nothing_is_proved():
    engine = Engine(first=4, second=2)
    with (
        pytest.raises(RuntimeError, match="ended before it could be aborted"),
        requests.aborting(engine, 1, after=3),
    ):
        engine.generate()


class Stream:
    """nnsight's stream of a request of so many tokens, and what it reads from."""

    def __init__(self, most: int) -> None:
        self.given, self.left = 0, False
        self._generator = self._tokens(most)

    async def _tokens(self, most: int) -> Any:
        try:
            for self.given in range(1, most + 1):
                output = SimpleNamespace(token_ids=[0] * self.given)
                yield SimpleNamespace(finished=self.given == most, outputs=[output])
        finally:
            self.left = True

    async def __aiter__(self) -> Any:
        async for output in self._generator:
            yield output


def test_a_stream_is_closed_and_what_it_reads_from_with_it():
    stream = Stream(9)

    async def close() -> bool:
        assert await saved(stream, 2) == {}
        return stream.left  # the loop's own end would close it too

    assert asyncio.run(close())
    assert stream.given == 2
    with pytest.raises(RuntimeError, match="ended before it could be aborted"):
        asyncio.run(saved(Stream(2), 3))


def said(**by_token: tuple[float, int]) -> dict[int, Any]:
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
    assert torch.equal(answer.ids[0], torch.tensor([9]))

"""nnsight on vLLM's streaming engine (`VLLM(..., mode="async")`).

A trace's values arrive with the finished output of a stream that the caller consumes. Here it
is consumed as soon as the block ends, and the values go where a synchronous trace puts them:
into the variables of the function that holds the block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from uuid import uuid4

import torch
from nnsight.modeling.vllm.async_backend import AsyncVLLMBackend
from nnsight.tracing.tracer import mark
from nnsight.tracing.util import push

from conformance.engines.probing import beside
from conformance.engines.vllm import adapted, cpu
from conformance.engines.vllm.aborts import NOT_ABORTED
from conformance.engines.vllm.engine import VLLMEngine, VLLMModel, load
from conformance.records import Job


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The one loop of this process: the engine's streams belong to it."""
    return asyncio.new_event_loop()


def wait_for(answer: Awaitable[Any]) -> Any:
    return loop().run_until_complete(answer)


class Consumed(AsyncVLLMBackend):  # type: ignore[misc]
    """nnsight's streaming backend, whose stream is read to its end when the block has ended."""

    def __call__(self, tracer: Any) -> None:
        super().__call__(tracer)
        saves = gathered(wait_for(_last(self)).nnsight_sequences)
        for value in saves.values():
            mark(value)
        push(tracer.info.frame, saves)


def gathered(sequences: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the block saved by name. Several samples of a prompt ran it once each: then a list of
    what each saved, as a synchronous trace gives it, unless it is one and the same object.
    """
    by_name: dict[str, list[Any]] = {}
    for saves in sequences:
        for name, value in saves.items():
            by_name.setdefault(name, []).append(value)
    return {
        name: values[0] if all(value is values[0] for value in values) else values
        for name, values in by_name.items()
    }


async def _last(stream: Any) -> Any:
    return [output async for output in stream][-1]


async def _closed(stream: Any, after: int) -> dict[str, Any]:
    """Close the stream of a trace after so many tokens, as nnsight says that one aborts it.

    That frees its block, and the engine goes on to the request's last token: what nnsight reads
    from is left open. It is closed as well, and that aborts the request in vLLM.
    """
    outputs = aiter(stream)
    async for output in outputs:
        if output.finished:
            raise RuntimeError(NOT_ABORTED)
        if len(output.outputs[0].token_ids) >= after:
            break
    await outputs.aclose()
    await stream._generator.aclose()
    return {}


#: Traces whose requests are not consumed yet. Not of `AsyncModel`, which travels with a block.
SENT: list[AsyncVLLMBackend] = []
#: Which of them are aborted, after how many tokens.
ABORTED: dict[int, int] = {}


class Sent(AsyncVLLMBackend):  # type: ignore[misc]
    """nnsight's streaming backend, whose stream is read later, beside the others'."""

    def __call__(self, tracer: Any) -> None:
        super().__call__(tracer)
        SENT.append(self)


async def saved(stream: Any, after: int | None = None) -> dict[str, Any]:
    """What a stream's last output brings home by name: nothing, if aborted after so many tokens."""
    if after is not None:
        return await _closed(stream, after)
    return gathered((await _last(stream)).nnsight_sequences)


async def _all(streams: Sequence[Any]) -> list[Any]:
    """What every stream brings home, or its error, all read at once."""
    saves = [saved(stream, ABORTED.get(index)) for index, stream in enumerate(streams)]
    return list(await asyncio.gather(*saves, return_exceptions=True))


class AsyncModel(VLLMModel):
    """`lm` of a scenario on the streaming engine."""

    def way(self) -> dict[str, Any]:
        return {"backend": Consumed(self.model)}

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        return self.model.trace(prompt, backend=Sent(self.model), **self.asking(steps, stop))

    def answers(self) -> list[Any]:
        answers: list[Any] = wait_for(_all([SENT.pop(0) for _ in range(len(SENT))]))
        return answers

    @contextmanager
    def aborting(self, index: int, after: int) -> Iterator[None]:
        """By closing the stream of its outputs."""
        ABORTED[index] = after
        try:
            yield
        finally:
            ABORTED.clear()

    def rpc(self, method: str, *args: Any) -> list[Any]:
        engine = self.model.vllm_entrypoint
        answers: list[Any] = wait_for(engine.collective_rpc(method, args=args))
        return answers

    def submit(self, prompts: Sequence[str], asked: Any) -> list[Any]:
        return list(wait_for(generated(self.model.vllm_entrypoint, prompts, asked)))


async def generated(engine: Any, prompts: Sequence[str], asked: Any) -> list[Any]:
    """The finished outputs of requests without a block, all at the same time."""
    with_adapter = adapted.of_a_request()
    streams = [engine.generate(prompt, asked, str(uuid4()), **with_adapter) for prompt in prompts]
    return list(await asyncio.gather(*(_last(stream) for stream in streams)))


class AsyncEngine(VLLMEngine):
    kind = AsyncModel
    at_once = staticmethod(beside.from_clients)

    def load(self) -> Any:
        return load(self.job, mode="async")


def open_engine(job: Job) -> AsyncEngine:
    if not torch.cuda.is_available():
        cpu.prepare(fork=True)
    return AsyncEngine(job)

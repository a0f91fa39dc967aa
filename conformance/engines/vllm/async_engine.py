"""nnsight on vLLM's streaming engine (`VLLM(..., mode="async")`).

A trace's values arrive with the last output of a stream, which the caller reads. Here it is read as
soon as the block ends, and the values go into the variables of the function that contains it, as in
a synchronous trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from uuid import uuid4

from nnsight.modeling.vllm.async_backend import AsyncVLLMBackend
from nnsight.tracing.tracer import mark
from nnsight.tracing.util import push

from conformance.engines.probing import beside
from conformance.engines.vllm import client
from conformance.engines.vllm.engine import VLLMEngine, VLLMModel
from conformance.engines.vllm.requests import NOT_ABORTED, name_adapter
from conformance.spec.records import Job


@cache
def loop() -> asyncio.AbstractEventLoop:
    """Return the process's only event loop, to which the engine's streams belong."""
    return asyncio.new_event_loop()


def wait_for(answer: Awaitable[Any]) -> Any:
    return loop().run_until_complete(answer)


class Consumed(AsyncVLLMBackend):  # type: ignore[misc]
    """nnsight's streaming backend; reads the stream to its end when the block ends."""

    def __call__(self, tracer: Any) -> None:
        super().__call__(tracer)
        saves = wait_for(saved(self))
        for value in saves.values():
            mark(value)
        push(tracer.info.frame, saves)


def gathered(sequences: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the block saved, by name. If several samples of a prompt each ran the block, a
    value is a list of their values, as in a synchronous trace, unless all are the same object.
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


async def saved(stream: Any, after: int | None = None) -> dict[str, Any]:
    """Return the saves in a stream's last output, by name. If `after` is given, close the stream
    after so many tokens, which is nnsight's documented way to abort it, and return nothing.

    Closing it frees its block, but the engine continues to the request's last token, because vLLM's
    generator stays open. Closing the generator too aborts the request in vLLM.
    """
    if after is None:
        return gathered((await _last(stream)).nnsight_sequences)
    outputs = aiter(stream)
    async for output in outputs:
        if output.finished:
            raise RuntimeError(NOT_ABORTED)
        if len(output.outputs[0].token_ids) >= after:
            break
    await outputs.aclose()
    await stream._generator.aclose()
    return {}


#: Submitted, unread traces. Not in `AsyncModel`, which is sent to other processes with a block.
SENT: list[Any] = []
#: The indices of traces to abort, with the number of tokens after which to do so.
ABORTED: dict[int, int] = {}


class DeferredStreamBackend(AsyncVLLMBackend):  # type: ignore[misc]
    """nnsight's streaming backend; its stream is read later, together with the others'."""

    def __call__(self, tracer: Any) -> None:
        super().__call__(tracer)
        SENT.append(self)


async def _gather(answers: Iterable[Awaitable[Any]], *, errors: bool = False) -> list[Any]:
    return list(await asyncio.gather(*answers, return_exceptions=errors))


class AsyncModel(VLLMModel):
    """The `lm` object of a scenario on the streaming engine."""

    def way(self) -> dict[str, Any]:
        return {"backend": Consumed(self.model)}

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        return self.model.trace(
            prompt, backend=DeferredStreamBackend(self.model), **self.asking(steps, stop)
        )

    def answers(self) -> list[Any]:
        """Read all streams at once; return each one's saves or error."""
        saves = [saved(stream, ABORTED.get(index)) for index, stream in enumerate(SENT)]
        SENT.clear()
        answers: list[Any] = wait_for(_gather(saves, errors=True))
        return answers

    @contextmanager
    def aborting(self, index: int, after: int) -> Iterator[None]:
        """Abort a request of those sent in the with block, by closing its stream or connection."""
        ABORTED[index] = after
        try:
            yield
        finally:
            ABORTED.clear()

    def rpc(self, method: str, *args: Any) -> list[Any]:
        engine = self.model.vllm_entrypoint
        answers: list[Any] = wait_for(engine.collective_rpc(method, args=args))
        return answers

    def submit(self, prompts: Sequence[str | Sequence[int]], asked: Any) -> list[Any]:
        return list(wait_for(generated(self.model.vllm_entrypoint, prompts, asked)))


async def generated(engine: Any, prompts: Sequence[str | Sequence[int]], asked: Any) -> list[Any]:
    """Return the finished outputs of requests without a block, all run at once."""
    adapter = name_adapter()
    streams = [engine.generate(prompt, asked, str(uuid4()), **adapter) for prompt in prompts]
    return await _gather(map(_last, streams))


class AsyncEngine(VLLMEngine):
    kind = AsyncModel
    mode = "async"
    at_once = staticmethod(beside.from_clients)


def open_engine(job: Job) -> AsyncEngine:
    client.prepare(streaming=True)
    return AsyncEngine(job)

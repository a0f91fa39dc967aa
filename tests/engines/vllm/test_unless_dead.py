"""A call of an engine whose process has ended comes to an end as well."""

import asyncio
from types import SimpleNamespace

import pytest

from conformance.engines.vllm import patches
from conformance.engines.vllm.patches import PatchPlace

DEAD = RuntimeError("EngineCore encountered an issue")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(patches, "LOOK", 0.01)


def test_what_an_engine_answers_is_the_answer():
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def answer():
        await asyncio.sleep(0.03)
        return [7]

    assert asyncio.run(patches.unless_dead(engine, answer())) == [7]


def test_its_own_error_is_raised():
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def answer():
        raise ValueError("no such method")

    with pytest.raises(ValueError, match="no such method"):
        asyncio.run(patches.unless_dead(engine, answer()))


def test_nobody_waits_for_an_engine_that_has_ended():
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def call():
        asyncio.get_running_loop().call_later(0.03, setattr, engine, "errored", True)
        never = asyncio.get_running_loop().create_future()
        with pytest.raises(RuntimeError, match="EngineCore"):
            await asyncio.wait_for(patches.unless_dead(engine, never), timeout=20)
        assert never.cancelled()

    asyncio.run(call())


def test_the_engine_that_nnsight_asks_is_vllms_with_that_end(monkeypatch):
    """nnsight awaits `collective_rpc` itself, for what a finished trace has saved."""
    from vllm.v1.engine.async_llm import AsyncLLM

    async def for_ever(*_, **__):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(AsyncLLM, "collective_rpc", for_ever)
    engine = SimpleNamespace(errored=True, dead_error=DEAD)

    async def call():
        await asyncio.wait_for(AsyncLLM.collective_rpc(engine, "saved"), timeout=20)

    with patches.applied(PatchPlace.STREAMING), pytest.raises(RuntimeError, match="EngineCore"):
        asyncio.run(call())


def test_a_request_that_comes_as_the_engine_ends_is_told_of_it(monkeypatch):
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestOutputCollector

    async def accepted(*_, **__):
        return RequestOutputCollector(RequestOutputKind.DELTA, "one")

    monkeypatch.setattr(AsyncLLM, "add_request", accepted)
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def call():
        request = await AsyncLLM.add_request(engine, "one")
        engine.errored = True
        await asyncio.wait_for(request.get(), timeout=20)

    with patches.applied(PatchPlace.STREAMING), pytest.raises(RuntimeError, match="EngineCore"):
        asyncio.run(call())


def test_a_request_that_is_over_is_watched_no_longer():
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def call():
        await asyncio.wait_for(patches.tell_of_the_end(engine, lambda: None), timeout=20)

    asyncio.run(call())

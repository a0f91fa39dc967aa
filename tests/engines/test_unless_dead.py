"""A call of an engine whose process has ended comes to an end as well."""

import asyncio
from types import SimpleNamespace

import pytest

from conformance.engines.vllm import async_engine

DEAD = RuntimeError("EngineCore encountered an issue")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(async_engine, "LOOK", 0.01)


def test_what_an_engine_answers_is_the_answer():
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def answer():
        await asyncio.sleep(0.03)
        return [7]

    assert asyncio.run(async_engine.unless_dead(engine, answer())) == [7]


def test_its_own_error_is_raised():
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def answer():
        raise ValueError("no such method")

    with pytest.raises(ValueError, match="no such method"):
        asyncio.run(async_engine.unless_dead(engine, answer()))


def test_nobody_waits_for_an_engine_that_has_ended():
    engine = SimpleNamespace(errored=False, dead_error=DEAD)

    async def call():
        asyncio.get_running_loop().call_later(0.03, setattr, engine, "errored", True)
        never = asyncio.get_running_loop().create_future()
        with pytest.raises(RuntimeError, match="EngineCore"):
            await asyncio.wait_for(async_engine.unless_dead(engine, never), timeout=20)
        assert never.cancelled()

    asyncio.run(call())

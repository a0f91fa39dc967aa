"""Aborts by the client of requests that are in flight with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: The abort came too late, so the case proves nothing.
NOT_ABORTED = "the request had ended before it could be aborted"


@contextmanager
def aborting(engine: Any, index: int, after: int) -> Iterator[None]:
    """Abort one request of a synchronous engine's next `generate`, once it has `after` tokens.

    It calls vLLM's `abort_request` between two steps: `generate` returns only after the last
    request, so a client has no other chance to abort.
    """
    step, requests = engine.step, engine.output_processor.request_states
    members: list[str] = []
    aborted = False

    def step_and_abort() -> Any:
        nonlocal aborted
        if not members:
            members.extend(requests)
        outputs = step()
        state = requests.get(members[index])
        if state is not None and state.detokenizer.num_output_tokens() >= after:
            engine.abort_request([members[index]], internal=True)
            aborted = True
        return outputs

    engine.step = step_and_abort
    try:
        yield
    finally:
        del engine.step
    if not aborted:
        raise RuntimeError(NOT_ABORTED)

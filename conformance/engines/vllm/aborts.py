"""Requests that their client aborts while they and others are under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: No abort was tried: the case proves nothing.
NOT_ABORTED = "the request had ended before it could be aborted"


@contextmanager
def aborting(engine: Any, index: int, after: int) -> Iterator[None]:
    """Abort one request of the next `generate` of a synchronous engine, once it has so many tokens.

    By vLLM's own `abort_request`, between two steps: `generate` holds its caller until the last
    request has ended, so that a client can come in nowhere else.
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

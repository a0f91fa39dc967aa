"""nnsight's trace scope, for requests without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nnsight.tracing.tracer import dec, inc


@contextmanager
def trace_scope() -> Iterator[None]:
    """Open nnsight's trace scope on this thread, and close it on exit.

    An engine in the client's process shares its thread. For a request without a block, nnsight's
    runner opens the scope and leaves it open. From then on the ids of saved objects are not cleared
    between traces, and an object at a reused address is returned by mistake (seen: `Can't pickle
    local object`, in one of a few hundred traces).
    """
    inc()
    try:
        yield
    finally:
        dec()

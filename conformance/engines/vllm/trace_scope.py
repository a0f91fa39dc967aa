"""nnsight's scope of a trace, for requests that carry none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nnsight.tracing.tracer import dec, inc


@contextmanager
def trace_scope() -> Iterator[None]:
    """Open nnsight's scope on this thread, and close it again.

    An engine that shares the client's process also shares its thread. On a request without a
    block nnsight's runner opens the scope itself and leaves it open: from then on the ids of
    saved objects are not forgotten between traces, and an object at a reused address travels
    home unasked (seen: `Can't pickle local object`, in one of a few hundred traces).
    """
    inc()
    try:
        yield
    finally:
        dec()

"""Room for an engine's libraries in a process's address space."""

from __future__ import annotations

import resource

from conformance.errors import ConformanceError

#: GiB. The imports of a worker map 1.6; a tiny model with its threads' stacks and buffers, and
#: vLLM's key-value cache, come on top.
NEEDED = 4


def require_address_space() -> None:
    """Raises ConformanceError where a limit leaves less than any engine takes: with less, BLAS
    libraries wait for memory without end while they are imported.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < NEEDED * 2**30:
        raise ConformanceError(
            f"the address space is limited to {limit / 2**30:.1f} GiB; engines need {NEEDED} GiB",
            remedy="ulimit -v unlimited",
        )

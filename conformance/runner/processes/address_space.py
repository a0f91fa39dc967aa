"""The address space that an engine's libraries need."""

from __future__ import annotations

import resource

from conformance.errors import ConformanceError

#: GiB. A worker's imports map 1.6; a tiny model with its threads' stacks and buffers, and vLLM's
#: key-value cache, need more.
NEEDED = 4


def require_address_space() -> None:
    """Raise ConformanceError if a limit leaves less than any engine needs. Below that, BLAS
    libraries wait for memory for ever during import.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < NEEDED * 2**30:
        raise ConformanceError(
            f"the address space is limited to {limit / 2**30:.1f} GiB; engines need {NEEDED} GiB",
            remedy="ulimit -v unlimited",
        )

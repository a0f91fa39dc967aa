"""What nnsight keeps of every block that reaches an engine.

    python docs/gaps/linecache_growth.py

exits 1 while the gap is there. `Mediator.__setstate__` (nnsight.intervention.interleaver), which
runs in each process of vLLM for each prompt of a trace, puts the block's source into Python's
`linecache` under a name of its own, and nothing takes it out when the request has ended: with two
pipeline stages and blocks of some 20 lines each stage grows by 6 KiB a prompt, for as long as the
engine runs.
"""

from __future__ import annotations

import gc
import linecache
import sys

from nnsight.intervention.interleaver import Mediator

BLOCKS = 1000
SOURCE = "kept = model.model.layers[0].output.save()\n" * 20


def arrived() -> Mediator:
    """One as it comes out of a request's bytes."""
    block = Mediator.__new__(Mediator)
    block.__setstate__({"reduced": (SOURCE, {}, {}), "copy": False, "presaved": frozenset()})
    return block


before = len(linecache.cache)
live = [arrived() for _ in range(BLOCKS)]
del live
gc.collect()
left = len(linecache.cache) - before
sys.stdout.write(f"{left} of {BLOCKS} blocks that have ended are still in linecache\n")
sys.exit(left > 0)

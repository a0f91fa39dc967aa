"""Running the groups of a run on the machines of a Ray cluster.

    with connected("ray://head:10001") as cluster:
        summary = runner.run(planned, …, allocate=cluster.allocate(limits))

Ray allocates each group by its needs, shares uploads in its object store, and retries a group on
another machine when its machine is lost. A machine runs a group with the same runner as the driver
would (`node.py`). Its files are synced into the run's folder as they are written (`sync.py`).
`machines.py` says why a machine may not run a group.
"""

from __future__ import annotations

from conformance.runner.cluster.connection import (
    Address,
    Cluster,
    connect,
    fork,
    parse_address,
)
from conformance.runner.cluster.machines import Machine

__all__ = ["Address", "Cluster", "Machine", "connect", "fork", "parse_address"]

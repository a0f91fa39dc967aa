"""The groups of a run on the machines of a Ray cluster.

    with connected("ray://head:10001") as cluster:
        summary = runner.run(planned, …, hire=cluster.hire(limits))

Ray places each group by what it needs, keeps what many groups need in its object store, and runs a
group again elsewhere when its machine is lost. On a machine a group is run by the very runner that
would run it at home (`node.py`); what that writes comes home, as it is written, into the one folder
of the run (`homeward.py`). Which machine may run what is told in words (`machines.py`).
"""

from __future__ import annotations

from conformance.cluster.address import Address, parsed
from conformance.cluster.apart import apart
from conformance.cluster.connection import Cluster, connected
from conformance.cluster.machines import Machine

__all__ = ["Address", "Cluster", "Machine", "apart", "connected", "parsed"]

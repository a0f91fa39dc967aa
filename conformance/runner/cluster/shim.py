"""Code sent to a machine by value: it may lack this package or have another version.

Imports only the standard library at the top, so that it always unpickles and can report problems.
"""

from __future__ import annotations

import pickle
import socket
import sys
from typing import Any


def look(expected: bytes) -> dict[str, Any]:
    """Return this machine's kind, and why it cannot stand in for the driver's, or ""."""
    said: dict[str, Any] = {"host": socket.gethostname(), "device": "", "cannot": ""}
    try:
        from conformance.runner.cluster import node

        said |= node.inspect(pickle.loads(expected))  # noqa: S301 - from the driver, as this code is
    except Exception as error:  # noqa: BLE001 - any problem is reported to the driver
        said["cannot"] = _words(error)
    return said


def carry_out(remote_job: bytes, group: str, uploads: list[Any], post: Any) -> None:
    """Run a group; its messages go to `post`."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    try:
        from conformance.runner.cluster import node
    except Exception as error:  # noqa: BLE001 - as above
        # A message is a class of the package, which cannot be imported here.
        post.put((group, here, _words(error)))
        return
    node.carry_out(pickle.loads(remote_job), uploads, post, here)  # noqa: S301 - from the driver


def _words(error: Exception) -> str:
    last = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"conformance cannot be used by {sys.executable}: {last}"

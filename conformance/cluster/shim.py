"""What a machine is sent as code, and not by name: it may lack this package, or have another one.

Only the standard library at the top, so that it can always be unpacked there and say what is amiss.
"""

from __future__ import annotations

import pickle
import socket
import sys
from typing import Any


def look(expected: bytes) -> dict[str, Any]:
    """What this machine is, and in words why it cannot stand in for the one that asks."""
    said: dict[str, Any] = {"host": socket.gethostname(), "device": "", "cannot": ""}
    try:
        from conformance.cluster import node

        said |= node.seen(pickle.loads(expected))  # noqa: S301 - from home, as this code is
    except Exception as error:  # noqa: BLE001 - whatever is amiss there is told at home
        said["cannot"] = _words(error)
    return said


def carry_out(errand: bytes, group: str, luggage: list[Any], post: Any) -> None:
    """Run a group; what comes of it goes to `post`."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    try:
        from conformance.cluster import node
    except Exception as error:  # noqa: BLE001 - as above
        # A message is a class of the package that cannot be imported here.
        post.put((group, here, _words(error)))
        return
    node.carry_out(pickle.loads(errand), luggage, post, here)  # noqa: S301 - from home


def _words(error: Exception) -> str:
    last = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"conformance cannot be used by {sys.executable}: {last}"

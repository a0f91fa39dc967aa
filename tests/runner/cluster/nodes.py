"""Ray nodes of this machine alone, and groups of faulty engines for them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.runner.cluster import Address, connect
from conformance.runner.scheduling import Event, Planned, RunSummary, TimeLimits, run
from conformance.spec import checkpoints
from conformance.spec.checkpoints import CheckpointShape
from tests.faulty_run import job

#: A cell takes milliseconds; the limits find what hangs, on a machine that does other things.
LIMITS = TimeLimits(cell=60.0, load=120.0, close=20.0, imports=120.0)

#: Room for what these groups read.
_STORE = 80 << 20


class Nodes:
    """A head that runs nothing, and nodes with a `NODE` variable each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": _STORE,
                "ray_client_server_port": (port := _free_port()),
            },
        )
        self._client = f"ray://127.0.0.1:{port}"
        self.address = Address(self._cluster.address)
        self._added: dict[str, Any] = {}

    def add(self, name: str, *, cpus: int = 1, **variables: str) -> None:
        self._added[name] = self._cluster.add_node(
            num_cpus=cpus, object_store_memory=_STORE, env_vars={"NODE": name, **variables}
        )

    def kill(self, name: str) -> None:
        self._cluster.remove_node(self._added.pop(name), allow_graceful=False)

    def clear(self) -> None:
        """Have them leave, which is known at once."""
        for name in list(self._added):
            self._cluster.remove_node(self._added.pop(name), allow_graceful=True)

    def client(self) -> str:
        """Where Ray's client is listened to."""
        return self._client

    def end(self) -> None:
        self._cluster.shutdown()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def nodes() -> Iterator[Nodes]:
    # Read when Ray is imported: nothing listens to other machines.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: sockets lie in it
    os.environ["RAY_TMPDIR"] = temporary
    try:
        cluster = Nodes()
        try:
            yield cluster
        finally:
            cluster.end()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def checkpoint(folder: Path) -> checkpoints.Checkpoint:
    """A sealed one, as small as can be."""
    place = folder / "checkpoints" / "m-0"
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.safetensors").write_bytes(b"weights")
    checkpoints.seal(place, "made here", "llama", CheckpointShape(1, 1))
    made = checkpoints.find_checkpoint(place)
    assert made is not None
    return made


def planned(engine: str, folder: Path, **more: Any) -> Planned:
    """A group of `tests.faulty`, with a checkpoint that can be sent."""
    made = checkpoint(folder)

    def make() -> Any:
        plain = job(engine, folder, **more.get("job", {}))
        backend = dataclasses.replace(plain.backend, pipeline=more.get("stages", 1))
        column = dataclasses.replace(plain.column, backend=backend)
        return dataclasses.replace(plain, column=column, checkpoint=made.path, digest=made.digest)

    return Planned(engine, make, launch(), folder=folder / "groups" / "m" / engine)


def launch() -> Any:
    from conformance.runner.scheduling import Launch

    return Launch(Path(sys.executable))


def on(cluster: Nodes, groups: list[Planned], folder: Path, tell: Any = None) -> RunSummary:
    """Run these groups there."""
    heard: list[Event] = []
    with connect(cluster.address) as joined:
        return run(
            groups,
            logs=folder / "logs",
            limits=LIMITS,
            device="home",
            on_event=tell or heard.append,
            allocate=joined.allocate(LIMITS),
        )

"""On a machine of a cluster: one group, run by the same runner as on the driver."""

from __future__ import annotations

import pickle
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance import checkpoints
from conformance.cluster import fitness, upload, warm
from conformance.cluster.messages import Begun, Ended, Expected, Message, RemoteJob
from conformance.cluster.sync import FileSync
from conformance.planning import machine
from conformance.processes import temporary
from conformance.records import Job
from conformance.runner import Event, GroupFinished, Launch, Planned
from conformance.runner.loop import Runner
from conformance.store import GroupFolder


def seen(expected: Expected) -> dict[str, str]:
    """Return this machine's kind, and why it cannot stand in for the driver's, or ""."""
    machine.set_arithmetic(expected.arithmetic)
    cannot = fitness.lacking(expected) or fitness.without_room(*_disks())
    return {"device": machine.conditions(), "cannot": cannot}


def carry_out(remote_job: RemoteJob, packed: Sequence[upload.Packed], post: Any, node: str) -> None:
    """Run the group, and sync its files to the driver as they are written."""
    import ray

    attempt = uuid.uuid4().hex
    sending = threading.Lock()

    def send(says: Any) -> None:
        with sending:  # both the runner's and the syncing thread send
            # As bytes: the queue's process may lack this package.
            post.put(pickle.dumps(Message(remote_job.group, attempt, node, says)))

    machine.set_arithmetic(remote_job.expected.arithmetic)
    device = machine.conditions()
    if cannot := _cannot(remote_job, device):
        send(cannot)
        return
    send(Begun(node, socket.gethostname(), device))
    try:
        # Removed with the group or, if this process is killed, by the next group on this machine.
        with temporary.folder() as where:
            job = _here(remote_job, packed, where, ray.get)
            with FileSync(job.folder, send):
                _run(remote_job, job, device, send)
            full = fitness.filled_up(GroupFolder(job.folder))
    except OSError as error:
        full = fitness.no_room(error)
        if not full:
            raise
    send(Ended(full, at_all=True) if full else Ended())


def _cannot(remote_job: RemoteJob, device: str) -> Ended | None:
    if words := fitness.lacking(remote_job.expected) or fitness.without_room(*_disks()):
        return Ended(words, at_all=True)
    if remote_job.device and device != remote_job.device:
        return Ended(f"is another kind of machine than the others of this model: {device}")
    if remote_job.python is not None and (
        words := fitness.other(remote_job.python, remote_job.versions)
    ):
        return Ended(words)
    return None


def _disks() -> tuple[Path, Path]:
    return Path(tempfile.gettempdir()), checkpoints.cache_folder()


def _here(
    remote_job: RemoteJob, packed: Sequence[upload.Packed], where: Path, get: upload.Get
) -> Job:
    """Return the group's job with everything that it reads on this machine."""
    job = remote_job.job
    weights, *others = packed
    cache = checkpoints.cache_folder()
    places = {job.checkpoint: upload.checkpoint(job.checkpoint, job.digest, weights, cache, get)}
    for number, other in enumerate(others):
        path = Path(other["path"])
        places[path] = where / str(number) / path.name
        upload.unpacked(other, places[path], get)
    folder = where / "groups" / job.folder.parent.name / job.folder.name
    folder.mkdir(parents=True)
    return replace(upload.moved(job, places), folder=folder)


def _run(remote_job: RemoteJob, job: Job, device: str, send: Callable[[Event], None]) -> None:
    planned = Planned(
        id=remote_job.group,
        make=lambda: job,
        launch=Launch(
            remote_job.python or Path(sys.executable), remote_job.preload, remote_job.env
        ),
        limits=remote_job.limits,
        load=remote_job.load,
        tries=remote_job.tries,
        ours=remote_job.ours,
    )

    def told(event: Event) -> None:
        if not isinstance(event, GroupFinished):  # the driver reports it when all files are there
            send(event)

    with warm.worker_pool(remote_job.limits, device) as workers:
        Runner([planned], workers=workers, cache=None, on_event=told).run()

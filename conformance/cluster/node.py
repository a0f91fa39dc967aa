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
from conformance.cluster import fitness, luggage, warm
from conformance.cluster.homeward import Homeward
from conformance.cluster.messages import Begun, Ended, Errand, Expected, Message
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


def carry_out(errand: Errand, packed: Sequence[luggage.Packed], post: Any, node: str) -> None:
    """Run the group, and sync its files to the driver as they are written."""
    import ray

    attempt = uuid.uuid4().hex
    sending = threading.Lock()

    def send(says: Any) -> None:
        with sending:  # both the runner's and the syncing thread send
            # As bytes: the queue's process may lack this package.
            post.put(pickle.dumps(Message(errand.group, attempt, node, says)))

    machine.set_arithmetic(errand.expected.arithmetic)
    device = machine.conditions()
    if cannot := _cannot(errand, device):
        send(cannot)
        return
    send(Begun(node, socket.gethostname(), device))
    try:
        # Removed with the group or, if this process is killed, by the next group on this machine.
        with temporary.folder() as where:
            job = _here(errand, packed, where, ray.get)
            with Homeward(job.folder, send):
                _run(errand, job, device, send)
            full = fitness.filled_up(GroupFolder(job.folder))
    except OSError as error:
        full = fitness.no_room(error)
        if not full:
            raise
    send(Ended(full, at_all=True) if full else Ended())


def _cannot(errand: Errand, device: str) -> Ended | None:
    if words := fitness.lacking(errand.expected) or fitness.without_room(*_disks()):
        return Ended(words, at_all=True)
    if errand.device and device != errand.device:
        return Ended(f"is another kind of machine than the others of this model: {device}")
    if errand.python is not None and (words := fitness.other(errand.python, errand.versions)):
        return Ended(words)
    return None


def _disks() -> tuple[Path, Path]:
    return Path(tempfile.gettempdir()), checkpoints.cache_folder()


def _here(errand: Errand, packed: Sequence[luggage.Packed], where: Path, get: luggage.Get) -> Job:
    """Return the group's job with everything that it reads on this machine."""
    job = errand.job
    weights, *others = packed
    cache = checkpoints.cache_folder()
    places = {job.checkpoint: luggage.checkpoint(job.checkpoint, job.digest, weights, cache, get)}
    for number, other in enumerate(others):
        path = Path(other["path"])
        places[path] = where / str(number) / path.name
        luggage.unpacked(other, places[path], get)
    folder = where / "groups" / job.folder.parent.name / job.folder.name
    folder.mkdir(parents=True)
    return replace(luggage.moved(job, places), folder=folder)


def _run(errand: Errand, job: Job, device: str, send: Callable[[Event], None]) -> None:
    planned = Planned(
        id=errand.group,
        make=lambda: job,
        launch=Launch(errand.python or Path(sys.executable), errand.preload, errand.env),
        limits=errand.limits,
        load=errand.load,
        tries=errand.tries,
        ours=errand.ours,
    )

    def told(event: Event) -> None:
        if not isinstance(event, GroupFinished):  # the driver reports it when all files are there
            send(event)

    with warm.crew(errand.limits, device) as crew:
        Runner([planned], crew=crew, cache=None, on_event=told).run()

"""On a machine of a cluster: one group, run by the same runner as on the driver."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance import checkpoints
from conformance.cluster import fitness, upload
from conformance.cluster.messages import Begun, Ended, Expected, Message, RemoteJob
from conformance.cluster.sync import FileSync
from conformance.planning import machine
from conformance.processes import temporary
from conformance.records import Job
from conformance.runner import Event, GroupFinished, Launch, Planned, TimeLimits
from conformance.runner.local import Local
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

    with worker_pool(remote_job.limits, device) as workers:
        Runner([planned], workers=workers, cache=None, on_event=told).run()


class Warm(Local):
    """This machine's workers. Zygotes outlive a group: Ray runs one group after another in the same
    process, and importing an engine takes longer than many groups do.
    """

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        """Keep all zygotes: the next group will probably need the same ones."""

    def end(self) -> set[int]:
        """Do nothing if all groups have ended."""
        return self.end_all() if self.running else set()

    def end_all(self) -> set[int]:
        return super().end()


@dataclass(frozen=True)
class _Kept:
    """The kept processes. `gpus` are Ray's allocation, which a zygote's variables keep."""

    workers: Warm
    gpus: str | None
    folder: ExitStack


#: The processes kept by this process.
_kept: list[_Kept] = []


@contextmanager
def worker_pool(limits: TimeLimits, device: str) -> Iterator[Warm]:
    """Provide the kept processes for one group; end them if the group does not finish."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if _kept and _kept[-1].gpus != gpus:
        end()
    if not _kept:
        stack = ExitStack()
        # Ends with the zygotes, which end with this process.
        folder = stack.enter_context(temporary.folder())
        places = temporary.environment(folder, checkpoints.cache_folder(), device)
        local = Warm(folder / "zygotes", jobs=1, limits=limits, device=device, places=places)
        _kept.append(_Kept(local, gpus, stack))
    workers, finished = _kept[-1].workers, False
    try:
        yield workers
        finished = not workers.running
    finally:
        if not finished:
            end()


def end() -> None:
    """End the kept processes, if any."""
    while _kept:
        kept = _kept.pop()
        kept.workers.end_all()
        kept.folder.close()

"""On a machine of a cluster: one group, run by the same runner as on the driver, and checks that
the machine can stand in for the driver's.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.runner.cluster import upload
from conformance.runner.cluster.messages import Begun, Ended, Expected, Message, RemoteJob
from conformance.runner.cluster.sync import FileSync
from conformance.runner.planning import machine
from conformance.runner.processes import temporary
from conformance.runner.scheduling import Event, GroupFinished, Launch, Planned, TimeLimits
from conformance.runner.scheduling.local import Local
from conformance.runner.scheduling.loop import Runner
from conformance.runner.scheduling.reuse import NO_ROOM
from conformance.runner.store import GroupFolder, ask_versions, read_versions
from conformance.runner.store.keys import files_digest
from conformance.spec import checkpoints
from conformance.spec.records import Group, Job, Outcome

#: The free space that a group needs for its files before they are synced, and a checkpoint.
ROOM_MIB = 512

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def inspect(expected: Expected) -> dict[str, str]:
    """Return this machine's kind, and why it cannot stand in for the driver's, or ""."""
    machine.set_arithmetic(expected.arithmetic)
    cannot = compare_environment(expected) or find_full_disk(*_disks())
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
            full = find_disk_error(GroupFolder(job.folder))
    except OSError as error:
        full = explain_disk_error(error)
        if not full:
            raise
    send(Ended(full, at_all=True) if full else Ended())


def _cannot(remote_job: RemoteJob, device: str) -> Ended | None:
    if words := compare_environment(remote_job.expected) or find_full_disk(*_disks()):
        return Ended(words, at_all=True)
    if remote_job.device and device != remote_job.device:
        return Ended(f"is another kind of machine than the others of this model: {device}")
    if remote_job.python is not None and (words := other(remote_job.python, remote_job.versions)):
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
    place = checkpoints.cache_folder()
    places = {job.checkpoint: upload.checkpoint(job.checkpoint, job.digest, weights, place, get)}
    for number, other in enumerate(others):
        path = Path(other["path"])
        places[path] = where / str(number) / path.name
        upload.unpack(other, places[path], get)
    folder = where / "groups" / job.folder.parent.name / job.folder.name
    folder.mkdir(parents=True)
    return replace(upload.move_inputs(job, places), folder=folder)


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
    while _kept:
        kept = _kept.pop()
        kept.workers.end_all()
        kept.folder.close()


@cache
def code_digest() -> str:
    """Return a digest of this package's source, without the version file that a build writes."""
    package = Path(__file__).parent.parent.parent
    return files_digest(sorted(set(package.rglob("*.py")) - {package / "_version.py"}), package)


def compare_environment(expected: Expected) -> str:
    """Return how this interpreter differs from the expected one, or ""."""
    if code_digest() != expected.code:
        return "has another conformance than the one that the run was started with"
    return compare_versions(expected.versions, read_versions())


def other(python: Path, versions: Mapping[str, str]) -> str:
    """Return how another interpreter differs from the expected versions, or ""."""
    try:
        return compare_versions(versions, ask_versions(python))
    except ConformanceError as error:
        return f"has no such environment: {error.message}: {python}"


def compare_versions(wanted: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return how an environment's versions differ from the wanted ones, or "" (pure)."""
    unlike = [
        f"{name} {there.get(name, 'missing')} instead of {version}"
        for name, version in wanted.items()
        if there.get(name) != version
    ]
    more = [f"{name} {there[name]}, which the run has not" for name in there if name not in wanted]
    words = "; ".join((*unlike, *more))
    return f"has not the environment of the run: {words}" if words else ""


def find_full_disk(*places: Path) -> str:
    """Return which disk has too little space for a group, or ""."""
    for place in places:
        standing = next(path for path in (place, *place.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(standing).free >> 20
        if free < ROOM_MIB:
            return f"has no room: {free} MiB at {place}, and a group wants {ROOM_MIB}"
    return ""


def find_disk_error(folder: GroupFolder) -> str:
    """Return the reason if a group's cells failed for lack of space on the machine, or ""."""
    ended: list[Outcome | Group | None] = [*map(folder.outcome, folder.finished()), folder.group()]
    reasons = (each.reason for each in ended if each and NO_ROOM.search(each.reason))
    return next((f"has no room any more: {reason}" for reason in reasons), "")


def explain_disk_error(error: OSError) -> str:
    """Return the reason if a file could not be written for lack of space, or ""."""
    return f"has no room any more: {error}" if error.errno in _FULL else ""

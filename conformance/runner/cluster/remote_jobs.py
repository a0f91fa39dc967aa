"""The driver's side: submits groups to Ray, and syncs their files into the run's folder."""

from __future__ import annotations

import pickle
import queue
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError, ExitCode
from conformance.runner.cluster import machines, shim, upload
from conformance.runner.cluster.machines import Machine, Needs
from conformance.runner.cluster.messages import (
    Begun,
    Ended,
    Expected,
    FilePiece,
    Message,
    RemoteJob,
)
from conformance.runner.cluster.sync import Arriving
from conformance.runner.scheduling import Planned, TimeLimits, WorkerPool
from conformance.runner.scheduling.group import GroupRun
from conformance.runner.store import ObservationCache, ask_versions

#: How often Ray restarts a group whose machine was lost, before the harness gives up.
RETRIES = 2

#: The most messages that wait at the driver, each at most one piece; further senders block.
_WAITING = 64

#: Seconds that one wait for messages may take, and between checks of the living nodes.
_LOOK_EVERY, _ALIVE_EVERY = 0.1, 2.0

#: Seconds that groups have after Ctrl-C to end and to sync what they have finished.
_ENDS_WITHIN = 20.0


@dataclass
class _Away:
    """A remote job. Only messages of `attempt` count, which runs on `node`."""

    group: GroupRun
    needs: Needs
    reference: Any
    attempt: str = ""
    node: str = ""
    arriving: Arriving | None = None
    #: Machines that must not run this group, with the reason.
    excluded: dict[str, str] = field(default_factory=dict)


class OnRay:
    """Runs groups on the machines of a cluster, except for those that must run on the driver.

    A model is never split between kinds of machine, since its columns are compared bitwise.
    """

    def __init__(
        self,
        ray: Any,
        found: Sequence[Machine],
        expected: Expected,
        local: WorkerPool,
        *,
        limits: TimeLimits,
        most: int | None,
    ) -> None:
        self._ray = ray
        self._machines = {machine.node: machine for machine in found}
        self._expected = expected
        self._local = local
        self._limits = limits
        self._most = most
        self._away: dict[str, _Away] = {}
        self._ended: list[GroupRun] = []
        self._kinds: dict[str, str] = {}
        self._packed: dict[Path, upload.Packed] = {}
        self._alive_at = 0.0
        ray.cloudpickle.register_pickle_by_value(shim)
        self._carry_out = ray.remote(shim.carry_out)
        self._post = _Post(ray)

    @property
    def peak_mib(self) -> float:
        return self._local.peak_mib

    def has_room_for(self, planned: Planned) -> bool:
        if planned.at_home:
            return self._local.has_room_for(planned)
        return self._most is None or len(self._away) < self._most

    def reuse(self, group: GroupRun, cache: ObservationCache | None) -> None:
        able = any(not machine.cannot for machine in self._machines.values())
        if group.planned.at_home or not able:  # nothing will run, but finished cells can be reused
            self._local.reuse(group, cache)
            return
        model = group.job.model.id
        kinds = {machine.device for machine in self._machines.values() if not machine.cannot}
        settled = self._kinds.get(model)
        group.reuse((settled,) if settled else sorted(kinds), cache)
        if group.reused:
            self._kinds[model] = group.device

    def prepare(self, waiting: Sequence[Planned]) -> None:
        self._local.prepare([planned for planned in waiting if planned.at_home])

    def begin(self, group: GroupRun) -> None:
        if group.planned.at_home:
            self._local.begin(group)
        else:
            job = group.to_send()
            gpus = machines.have_gpus(tuple(self._machines.values()))
            wanted = machines.needs_of(job.backend, upload.size(job.checkpoint), gpus=gpus)
            self._give(_Away(group, wanted, None))

    def work(self) -> list[GroupRun]:
        ended = self._local.work()
        for message in self._post.come(_LOOK_EVERY):
            self._take(message)
        self._look_at_failures()
        self._look_who_lives()
        ours, self._ended = self._ended, []
        return [*ended, *ours]

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        self._local.keep_only([planned for planned in wanted if planned.at_home])
        # Release the uploads of models whose groups have all ended.
        models = {planned.folder.parent.name for planned in wanted if planned.folder is not None}
        self._packed = {
            path: packed for path, packed in self._packed.items() if packed["model"] in models
        }

    def end(self) -> set[int]:
        references = [away.reference for away in self._away.values()]
        for reference in references:
            self._cancel(reference)  # as on Ctrl-C: its runner ends what it began
        until = time.monotonic() + _ENDS_WITHIN
        with suppress(ConformanceError, self._ray.exceptions.RayError):
            while references and time.monotonic() < until:
                _, references = self._ray.wait(
                    references, num_returns=len(references), timeout=_LOOK_EVERY
                )
                for message in self._post.come(0):
                    self._take(message, only_hear=True)
            for message in self._post.last():
                self._take(message, only_hear=True)
        for reference in references:
            self._cancel(reference, force=True)
        self._post.close()
        return self._local.end()

    def _cancel(self, reference: Any, *, force: bool = False) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.cancel(reference, force=force)

    # --- submitting remote jobs ---------------------------------------------

    def _give(self, away: _Away) -> None:
        """Submit a remote job, excluding the machines that cannot run it."""
        planned, job = away.group.planned, away.group.to_send()
        self._away[planned.id] = away
        if self._refused(away):
            return
        launch = planned.launch
        here = launch.python == Path(sys.executable)
        remote_job = RemoteJob(
            group=planned.id,
            job=job,
            python=None if here else launch.python,
            preload=launch.preload,
            env=launch.env,
            versions={} if here else ask_versions(launch.python),
            expected=self._expected,
            limits=planned.limits or self._limits,
            load=planned.load,
            tries=planned.tries,
            ours=planned.ours,
            device=self._kinds.get(job.model.id, ""),
        )
        sent = [
            self._packed_once(path, job.model.id) for path in (job.checkpoint, *upload.places(job))
        ]
        options: dict[str, Any] = {
            "num_cpus": away.needs.cpus,
            "num_gpus": away.needs.gpus,
            "memory": away.needs.memory,
            "max_retries": RETRIES,
            "name": f"conformance {planned.id}",
        }
        if out := self._excluded(away):
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(out))})"}
        away.reference = self._carry_out.options(**options).remote(
            pickle.dumps(remote_job), planned.id, sent, self._post.remote
        )
        away.attempt = away.node = ""
        away.arriving = None

    def _packed_once(self, path: Path, model: str) -> upload.Packed:
        if path not in self._packed:
            self._packed[path] = {**upload.pack(path, self._ray.put), "model": model}
        return self._packed[path]

    def _excluded(self, away: _Away) -> dict[str, str]:
        unable = {node: each.cannot for node, each in self._machines.items() if each.cannot}
        kind = self._kinds.get(away.group.job.model.id, "")
        unlike = {
            node: f"is another kind of machine than the others of this model: {each.device}"
            for node, each in self._machines.items()
            if kind and each.device and each.device != kind
        }
        return {**unlike, **unable, **away.excluded}

    def _refused(self, away: _Away) -> bool:
        """Return whether no machine can run it, and record that for its cells."""
        why = machines.explain(away.needs, tuple(self._machines.values()), self._excluded(away))
        if why:
            self._close(away, why)
        return bool(why)

    # --- handling their messages --------------------------------------------

    def _take(self, message: Any, *, only_hear: bool = False) -> None:
        if isinstance(message, tuple):  # from a machine that cannot import this package
            group, node, words = message
            message = Message(group, "", node, Ended(words, at_all=True))
        else:
            message = pickle.loads(message)  # noqa: S301 - the machine may run code as this user
        away = self._away.get(message.group)
        if away is None:
            return
        if isinstance(message.says, Begun):
            self._begun(away, message.attempt, message.says)
            return
        if message.attempt != away.attempt and not isinstance(message.says, Ended):
            return  # a late message from a machine that counts as lost
        match message.says:
            case FilePiece() as part:
                self._put(away, part)
            case Ended() if only_hear or message.attempt not in ("", away.attempt):
                pass
            case Ended(cannot=cannot, at_all=at_all) if cannot:
                self._elsewhere(away, message.node, cannot, at_all=at_all)
            case Ended():
                left = ", ".join(away.group.missing())
                self._close(away, f"{away.group.machine} gave no outcome of {left}" if left else "")
            case event:
                away.group.heard(event)

    def _begun(self, away: _Away, attempt: str, begun: Begun) -> None:
        known = self._machines.get(begun.node)
        if known is None:  # it joined later
            known = Machine(begun.node, begun.machine, {}, begun.device)
            self._machines[begun.node] = known
        away.attempt, away.node = attempt, begun.node
        away.group.placed(begun.device, known.name)
        away.arriving = Arriving(away.group.folder.path)
        self._kinds.setdefault(away.group.job.model.id, begun.device)

    def _put(self, away: _Away, part: FilePiece) -> None:
        try:
            if away.arriving is not None:
                away.arriving.take(part)
        except ValueError as error:
            raise ConformanceError(
                f"{away.group.machine} sent what no group has: {error}", code=ExitCode.HARNESS
            ) from error
        except OSError as error:
            raise ConformanceError(
                f"what machines send cannot be kept: {error}",
                remedy="make room; then go on: conformance run --resume",
                code=ExitCode.HARNESS,
            ) from error

    def _elsewhere(self, away: _Away, node: str, cannot: str, *, at_all: bool) -> None:
        away.group.give_up_machine()
        away.excluded[node] = cannot
        if at_all and node in self._machines:
            self._machines[node] = replace(self._machines[node], cannot=cannot)
        self._give(away)

    def _look_at_failures(self) -> None:
        """Close groups that Ray gave up, as failures of the harness."""
        running = {away.reference: away for away in self._away.values() if away.reference}
        if not running:
            return
        done, _ = self._ray.wait(list(running), num_returns=len(running), timeout=0)
        for reference in done:
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._close(running[reference], _words(error))

    def _look_who_lives(self) -> None:
        """Refuse groups whose machine died if no other machine can run them."""
        if not self._away or time.monotonic() < self._alive_at:
            return
        self._alive_at = time.monotonic() + _ALIVE_EVERY
        nodes = machines.list_nodes(self._ray)
        for node, machine in list(self._machines.items()):
            if node not in nodes and machine.cannot != _LOST:
                self._machines[node] = replace(machine, cannot=_LOST)
        for node, told in nodes.items():
            if node not in self._machines or not self._machines[node].resources:
                found = self._machines.get(node)
                name = found.name if found else told["NodeManagerHostname"]
                device = found.device if found else ""
                self._machines[node] = Machine(node, name, told["Resources"], device)
        for away in list(self._away.values()):
            waits = not away.node or self._machines[away.node].cannot == _LOST
            if waits and self._refused(away):
                self._cancel(away.reference, force=True)

    def _close(self, away: _Away, why: str = "") -> None:
        """End a group; with a reason `why`, as a failure of the harness."""
        if why:
            away.group.refuse(why, harness=True)
        del self._away[away.group.planned.id]
        self._ended.append(away.group)


_LOST = "was lost"


def _words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = getattr(error, "cause", None)
    last = f"{type(cause).__name__}: {cause}" if cause is not None else " ".join(lines[:2])
    return f"the cluster did not run it: {type(error).__name__}: {last}"[:500]


class _Post:
    """Ray's queue on the driver's machine; a thread reads it.

    Ctrl-C interrupts the main thread anywhere, which would lose what it had just taken from the
    queue.
    """

    def __init__(self, ray: Any) -> None:
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        home = ray.get_runtime_context().get_node_id()
        self._ray = ray
        self.remote = Queue(
            maxsize=_WAITING,
            actor_options={
                "num_cpus": 0,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(home, soft=False),
            },
        )
        self._come: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def come(self, seconds: float) -> list[Any]:
        """Return the messages that have arrived, after waiting at most `seconds`.

        Raises ConformanceError if the cluster is gone.
        """
        messages: list[Any] = []
        with suppress(queue.Empty):
            messages.append(self._come.get(timeout=seconds) if seconds else self._come.get_nowait())
            while True:
                messages.append(self._come.get_nowait())
        for message in messages:
            if isinstance(message, Exception):
                raise ConformanceError(
                    f"the cluster is lost: {message}".splitlines()[0],
                    remedy="go on, there or elsewhere: conformance run --resume",
                    code=ExitCode.HARNESS,
                ) from message
        return messages

    def last(self) -> list[Any]:
        """Return everything that was sent before now."""
        self._ended.set()
        self._thread.join(timeout=_ENDS_WITHIN)
        return self.come(0)

    def close(self) -> None:
        self._ended.set()
        with suppress(Exception):
            self.remote.shutdown(force=True)

    def _receive(self) -> None:
        from ray.util.queue import Empty

        try:
            while True:
                ending = self._ended.is_set()
                try:
                    self._come.put(self.remote.get(timeout=_LOOK_EVERY))
                except Empty:
                    if ending:
                        return
        except Exception as error:  # noqa: BLE001 - raised again by `come`
            if not self._ended.is_set():
                self._come.put(error)

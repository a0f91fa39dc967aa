"""Engines that are wrong on purpose, one way each: what a runner must survive.

Opened by name, as `tests.faulty:hangs`. Each behaves well but for the case called `bad`.
`backend.options` may hold: `folder`, where an engine leaves files that a test looks for;
`noted`, a file that gets a line for every case that is run; `refuse`, to refuse every
other case, which needs no torch and so is quick.
"""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NoReturn

import psutil

from conformance.engines import Refused, Unreadable
from conformance.engines.probing.probe_failure import tell_probing
from conformance.spec.records import Case, Group, Job, Status
from conformance.spec.scenario import Scenario
from conformance.worker import process_state

IDENTITY = {"stages": 1, "eager": True}


#: A child that does not end when asked to, and says by a file that it is deaf.
_DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


class Healthy:
    """Observes one small tensor for each prompt."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.options = job.backend.options

    def group(self) -> Group:
        return Group(self.job.model.id, self.job.backend.id, identity=IDENTITY)

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        self.note(case)
        return self.bad(case) if case.name == "bad" else self.good(case)

    def good(self, case: Case) -> Mapping[str, Any]:
        if self.options.get("refuse"):
            raise Refused("refuses everything")
        import torch

        return {f"p{row}/s0/logits": torch.arange(4.0) for row, _ in enumerate(case.prompts)}

    def bad(self, case: Case) -> Mapping[str, Any]:
        return self.good(case)

    def note(self, case: Case) -> None:
        """Leave a trace of every run of a case, so that a test can count them."""
        if "noted" in self.options:
            with Path(self.options["noted"]).open("a") as file:
                file.write(f"{case.key}\n")

    def wait_for_gate(self) -> None:
        """Go on when somebody has made the file `gate`."""
        while not (Path(self.options["folder"]) / "gate").exists():
            threading.Event().wait(0.01)

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return tuple((1, 2, row) for row, _ in enumerate(case.prompts))

    def close(self) -> None:
        pass


def _with(bad: Callable[[Healthy, Case], Mapping[str, Any]]) -> Callable[[Job], Healthy]:
    return type(bad.__name__.title(), (Healthy,), {"bad": bad})


def _forever() -> NoReturn:
    while True:
        threading.Event().wait(60)


def _fork(target: Callable[..., object], *arguments: object) -> ForkProcess:
    """Start a process that shares what this one has imported."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def _stubborn_child(folder: str) -> None:
    """Start a process that ignores SIGTERM, and wait until it does."""
    deaf = Path(folder) / f"deaf-{os.getpid()}-{time.monotonic_ns()}"
    subprocess.Popen([sys.executable, "-c", _DEAF, str(deaf)])
    while not deaf.exists():
        time.sleep(0.01)


def _map_shared(folder: Path) -> mmap.mmap:
    """Map a file in shared memory that nobody tracks, as vLLM's CPU kernels do."""
    name = f"conformance-{folder.parent.name}-{folder.name}-{os.getpid()}"
    path = Path("/dev/shm") / name
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 4096)


healthy = Healthy


@_with
def aborts(engine: Healthy, case: Case) -> Mapping[str, Any]:
    sys.stderr.write("the kernel found a bad shape\n")
    sys.stderr.flush()
    os.abort()


@_with
def hangs(engine: Healthy, case: Case) -> Mapping[str, Any]:
    _forever()


@_with
def waits_for_gate(engine: Healthy, case: Case) -> Mapping[str, Any]:
    engine.wait_for_gate()
    return engine.good(case)


@_with
def hangs_in_a_stage(engine: Healthy, case: Case) -> Mapping[str, Any]:
    """The process that is asked waits for one that was forked from it, and that hangs."""
    stage = os.fork()
    if stage == 0:
        _the_stage_hangs_here()
    os.waitpid(stage, 0)
    _forever()


def _the_stage_hangs_here() -> NoReturn:
    _forever()


@_with
def hangs_with_children(engine: Healthy, case: Case) -> Mapping[str, Any]:
    _stubborn_child(engine.options["folder"])
    _forever()


def _doing(act: Callable[..., Any], *arguments: object) -> type[Healthy]:
    """Its bad case calls this, and has observed what that returns."""
    return type("Doing", (Healthy,), {"bad": lambda _engine, _case: act(*arguments)})


exits = _doing(os._exit, 0)
exits_politely = _doing(sys.exit, 0)
sees_nothing = _doing(dict)
returns_no_tensors = _doing(dict, {"p0/s0/logits": "four"})


def _raising(error: Exception) -> type[Healthy]:
    def bad(engine: Healthy, case: Case) -> NoReturn:
        raise error

    return type("Raises", (Healthy,), {"bad": bad})


raises = _raising(ValueError("shapes [3, 8] and [4, 8] do not fit"))
refuses = _raising(Refused("does not support pipeline parallelism"))
unreadable = _raising(Unreadable("dual is off by 0.7, single by 0.9"))


class RaisesAndIsWell(Healthy):
    """After an error it says of itself that it is well, as often as `well` allows."""

    def bad(self, case: Case) -> Mapping[str, Any]:
        raise ValueError("a trace's own")

    def still_well(self) -> bool:
        if self.options.get("well") == "broken":
            raise RuntimeError("it cannot even be asked")
        return bool(self.options.get("well"))


class Refuses(Healthy):
    """Refuses every case, whatever its options say."""

    def good(self, case: Case) -> Mapping[str, Any]:
        raise Refused("refuses everything")


@_with
def crashes_once(engine: Healthy, case: Case) -> Mapping[str, Any]:
    flag = Path(engine.options["folder"]) / "crashed"
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return engine.good(case)


@_with
def kills_its_zygote(engine: Healthy, case: Case) -> Mapping[str, Any]:
    os.kill(os.getppid(), signal.SIGKILL)
    _forever()


kills_its_zygote_too = kills_its_zygote


@_with
def stops_its_zygote(engine: Healthy, case: Case) -> Mapping[str, Any]:
    os.kill(os.getppid(), signal.SIGSTOP)
    _forever()


@_with
def cannot_be_written(engine: Healthy, case: Case) -> Mapping[str, Any]:
    """From here on this worker's disk is full."""

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path.write_text = full  # type: ignore[method-assign]
    return engine.good(case)


class EngineWithProcess(Healthy):
    """The engine is a child process; it ends under the bad case and the trace raises."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def bad(self, case: Case) -> Mapping[str, Any]:
        self.process.kill()
        self.process.wait()
        raise RuntimeError("the engine core is gone")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class EndsWhenTold(EngineWithProcess):
    """Somebody tells its process to end, once: it says so, and ends a moment later."""

    def __init__(self, job: Job) -> None:
        Healthy.__init__(self, job)
        self.told = Path(self.options["folder"]) / "told"
        ends = (
            "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit()))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{ends}; print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.process.stdout.readline()  # type: ignore[union-attr]

    def bad(self, case: Case) -> Mapping[str, Any]:
        if self.told.exists():
            return self.good(case)
        self.told.touch()
        subprocess.run(["kill", "-TERM", str(self.process.pid)], check=True)
        raise RuntimeError("Server shutting down")


def does_not_start(job: Job) -> Healthy:
    sys.stderr.write("no kernel image for this device\n")
    raise RuntimeError("the engine core could not be initialised")


def refuses_to_start(job: Job) -> Healthy:
    raise Refused("SupportsPP is not implemented")


class TellsProducts(Healthy):
    """Says how the process in which it is opened multiplies float32."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        from conformance.engines.float32_products import products  # which imports torch

        self.identity = {"products": products()}

    def group(self) -> Group:
        return replace(super().group(), identity=self.identity)


def refuses_elsewhere(job: Job) -> Healthy:
    """Another process of it refuses, and writes why; this one only says where to look."""
    words = "Pipeline parallelism is not supported for this model"
    sys.stderr.write(f"[worker.py:7] NotImplementedError: {words}\n")
    raise RuntimeError("the engine core could not be initialised, see root cause above")


def hangs_in_load(job: Job) -> Healthy:
    _forever()


def aborts_in_load(job: Job) -> Healthy:
    os.abort()


def exits_in_load(job: Job) -> Healthy:
    os._exit(3)


class LeavesSockets(Healthy):
    """Listens on a socket of the file system, as vLLM's queues do, and on every interface."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(Path(tempfile.mkdtemp()) / "queue"))
        self.listener.listen()
        self.everywhere = socket.create_server(("0.0.0.0", 0))
        path = Path(self.options["folder"]) / "listens"
        path.write_text(f"{self.listener.getsockname()} {os.getpid()}")

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        if case.name == "last":
            self.wait_for_gate()
        return super().run(scenario, case)


class LosesAProcessInLoad(Healthy):
    """While it loads a stranger kills its process: so often as the file `kills` says, by `signal`,
    "" for nobody.

    It then raises as an engine does that cannot start, and names exit codes as vLLM does.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        left = Path(self.options["folder"]) / "kills"
        stages = [_fork(_forever) for _ in range(2)]
        if kills := int(left.read_text()):
            left.write_text(str(kills - 1))
            if number := self.options.get("signal", "KILL"):
                subprocess.run(["kill", f"-{number}", str(stages[0].pid)], check=True)
                stages[0].join()
        lost = not stages[0].is_alive()
        for stage in stages:
            stage.terminate()
            stage.join()
        if kills:
            # As vLLM does, which names the exit codes of the processes that are gone.
            codes = {"EngineCore_0": stages[0].exitcode} if lost else {}
            words = "Engine core initialization failed. See root cause above."
            raise RuntimeError(f"{words} Failed core proc(s): {codes}")


class LosesAProcessInProbe(LosesAProcessInLoad):
    """The same while it is probed: it stays open, and each of its traces meets that error."""

    def __init__(self, job: Job) -> None:
        self.obstacle: RuntimeError | None = None
        try:
            super().__init__(job)
        except RuntimeError as error:
            self.obstacle = error

    def group(self) -> Group:
        if self.obstacle is None:
            return super().group()
        reason = f"RuntimeError: {self.obstacle}"
        return replace(super().group(), status=Status.ERROR, reason=reason)

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        if self.obstacle is not None:
            raise self.obstacle
        return super().run(scenario, case)


class LosesAHelper(Healthy):
    """A process that it started, and does not compute with, ends as its load does, in
    order; a case of it raises an error of its own.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        computing, helper = _fork(_forever), _fork(_forever)
        tell_probing(job, [int(computing.pid or 0)])
        helper.terminate()
        helper.join()

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        if case.name == "first":
            raise RuntimeError("ValueError: save() was called outside a trace.")
        return super().run(scenario, case)


class LosesAProcessUnseen(Healthy):
    """As its load comes to its end a stranger ends a process of its server's, once, by `signal`,
    and nobody waits for that one: it is open, and its first trace meets the error. Told to
    terminate, the process goes in order.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        left = Path(self.options["folder"]) / "kills"
        self.lost = bool(int(left.read_text()))
        left.write_text("0")
        here, there = multiprocessing.Pipe()
        _fork(_serving, there)
        core = here.recv()
        tell_probing(job, [core])
        if self.lost:
            subprocess.run(["kill", f"-{self.options['signal']}", str(core)], check=True)
            while psutil.Process(core).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        if self.lost:
            raise RuntimeError("EngineDeadError: EngineCore encountered an issue.")
        return super().run(scenario, case)


def _serving(says: Connection) -> None:
    """A process with one of its own, of which it says the number."""
    _fork(_until_told, says)
    _forever()


def _until_told(says: Connection) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    says.send(os.getpid())
    _forever()


class EndsItsProcessesInLoad(Healthy):
    """It cannot start, and ends the process it had: nobody else has."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        stage = _fork(_forever)
        stage.kill()
        stage.join()
        raise RuntimeError("no room for the cache")


class HangsInClose(Healthy):
    def close(self) -> None:
        _forever()


class LeavesChildren(Healthy):
    """Leaves a process behind, also one that left the session, and ends as if well."""

    def close(self) -> None:
        _stubborn_child(self.options["folder"])
        if os.fork() == 0:
            os.setsid()
            _stubborn_child(self.options["folder"])
            os._exit(0)
        os.wait()


class WaitsInLast(Healthy):
    """Does not go on from the case called `last` until the file `gate` is there."""

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        self.note(case)
        gate = Path(self.options["folder"]) / "gate"
        if case.name == "last" and not gate.exists():
            self.shared = _map_shared(Path(self.options["folder"]))
            _stubborn_child(self.options["folder"])
            _forever()
        return self.good(case)


class LeavesSharedMemory(Healthy):
    """Aborts with shared memory that nobody but the runner could give back."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.shared = _map_shared(Path(self.options["folder"]))

    def bad(self, case: Case) -> Mapping[str, Any]:
        os.abort()


class Talks(Healthy):
    """Prints, as engines do, and says what its process is like."""

    def group(self) -> Group:
        print("an engine prints")
        subprocess.run(["sh", "-c", "echo so does its child >&2"], check=True)
        identity = {
            "leads": os.getsid(0) == os.getpid(),
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        }
        return Group(self.job.model.id, self.job.backend.id, identity=identity)


class HasDaemon(Healthy):
    """Has a process that left the session and lost its parent, and cannot do without it."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        ours, its = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if daemon := os.fork():
                os.write(its, str(daemon).encode())
                os._exit(0)
            _forever()
        self.daemon = int(os.read(ours, 32))
        os.wait()

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        if case.name == "last":
            self.wait_for_gate()
        os.kill(self.daemon, 0)
        return self.good(case)


class LiesAboutItself(Healthy):
    def group(self) -> Group:
        return Group(self.job.model.id, self.job.backend.id, identity={"stages": 2})


#: A block that puts something in here has damaged its engine.
BROKEN: list[str] = []


class BlockHere(Healthy):
    """Its bad case runs the scenario, in the worker as those of HF run."""

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        self.note(case)
        with Path(self.options["folder"], "ran").open("a") as file:
            file.write(f"{case.name} {os.getpid()}\n")
        if case.name == "bad":
            self.run_block(scenario, case)
        return self.good(case)

    def unchanged(self) -> bool:
        return not BROKEN

    def run_block(self, scenario: Scenario, case: Case) -> None:
        scenario.run(None, case)


class BlockInAStage(BlockHere):
    """The same in a process of its own, as those of several stages run."""

    def run_block(self, scenario: Scenario, case: Case) -> None:
        stage = os.fork()
        if stage == 0:
            self.serve(lambda: scenario.run(None, case))
        _, status = os.waitpid(stage, 0)
        if status == 1 << 8:
            raise RuntimeError("a stage has raised; see the root cause above")
        if status:
            raise RuntimeError("a stage has ended")

    @staticmethod
    def serve(block: Callable[[], object]) -> NoReturn:
        try:
            with process_state.raising_instead_of_exiting():
                eval(compile("block()", "<nnsight 1>", "eval"), {"block": block})
        except RuntimeError:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)


class StopsWhereDoomed(Healthy):
    """On a machine that a test will end, the second case waits for that; elsewhere all is well."""

    def bad(self, case: Case) -> Mapping[str, Any]:
        if os.environ.get("NODE") == "doomed":
            signal.pause()
        return self.good(case)


class FillsItsDisk(Healthy):
    """Writes into temporary files until there is no room, where the machine has a small disk."""

    def bad(self, case: Case) -> Mapping[str, Any]:
        if os.environ.get("NODE") == "small":
            with tempfile.TemporaryFile() as file:
                while True:
                    file.write(bytes(1 << 20))
        return self.good(case)


class SaysItsParent(Healthy):
    """Which zygote its worker was forked from."""

    def group(self) -> Group:
        return replace(super().group(), identity={**IDENTITY, "parent": os.getppid()})

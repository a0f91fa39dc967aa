"""Many traces on one engine: does anything hang, or grow on any of its processes?

    python bench/soak.py [--traces 10000] [--stages 2] [--seconds 3000]
    python bench/soak.py --serve [--traces 2000]

The first sends traces of one to four prompts, errors among them, to an engine of so many stages;
the second requests to nnsight-serve. A tenth of them warms up; from then on no process may have
more open descriptors or more files in shared memory, nor more than 2 % and 8 MiB more memory,
and no count of the relay may be left. Prints each process at every tenth, and exits 1 when one
has grown. After --seconds it ends early and says how far it came.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engines" / "relay"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relay_compare import GROWING
from relay_lab import Lab, ProgramError, Spec, build

from conformance.engines import ENGINES
from conformance.runner.processes import sessions
from conformance.spec.records import Backend, Column, Job, Model, Precision

PROGRAMS = [
    ("read_all",),
    ("backward_between_steps",),
    ("wave", 2, 3),
    ("wave", 3, 4),
    ("wave", 4, 3),
    ("cross_write",),
    ("rows_carried",),
    ("samples_forced",),
    ("cached",),
    ("raises", "between"),
    ("stopped",),
    ("registered",),
    ("several_samples",),
]
PROMPTS = ("The capital of France is", "One two three four five six seven", "Hello")

#: How often the relay is asked what it has left, in traces.
ASKED = 100

#: What may come on top of the memory after the warming up.
SHARE, MIB = 0.02, 8.0

Trace = Callable[[int], None]


@dataclass(frozen=True)
class Weight:
    """One process: MiB that it has written, open descriptors, files in shared memory, threads."""

    memory: float
    descriptors: int
    shared: int
    threads: int

    def grown(self, before: Weight) -> bool:
        """More memory than the bar has, or more of what is counted."""
        return (
            self.memory > before.memory * (1 + SHARE) + MIB
            or self.descriptors > before.descriptors
            or self.shared > before.shared
        )


def weights(leader: int) -> dict[str, Weight]:
    """A process, those of its session and those that they started, by name and id.

    Of this process only what it holds: answers wait in cycles for Python's own next collection.
    """
    gc.collect()
    found = {}
    for pid in {leader, *sessions.members(leader)}:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            name = (process.cmdline() or [process.name()])[0].split("/")[-1]
            found[f"{name} {pid}"] = Weight(
                written(pid),
                process.num_fds(),
                len(sessions.shared_files([pid])),
                process.num_threads(),
            )
    return found


@contextlib.contextmanager
def relayed(stages: int) -> Iterator[tuple[int, Trace]]:
    """An engine of so many stages: its process, and what sends it one trace."""
    lab = Lab()
    engine = lab.engine(Spec("llama-6", stages))

    def trace(number: int) -> None:
        program = PROGRAMS[number % len(PROGRAMS)]
        try:
            engine.run(*program, timeout=120)
        except ProgramError as error:
            if program[0] != "raises":
                raise SystemExit(f"trace {number}: {error}") from error
        if number % ASKED == 0:
            left = [
                {key: value for key, value in rank.items() if value and key not in GROWING}
                for rank in engine.run("state")
            ]
            if any(left):
                raise SystemExit(f"trace {number}, {program}: left {left}")

    try:
        yield engine.pid, trace
    finally:
        lab.close()


@contextlib.contextmanager
def opened(
    column: str, model: str = "llama-4", precision: Precision = Precision.BF16
) -> Iterator[Any]:
    """The engine of a column, on a tiny model and without a probe: this process is its client."""
    from conformance.engines import load_engine, set_environment

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        set_environment()
        name = ENGINES[column]
        engine: Any = load_engine(
            name,
            Job(
                name,
                Model("llama", "llama", ()),
                Column(Backend(column, column)),
                Path(build(model, folder)),
                Path(folder, "group"),
                Path(folder, "scenarios"),
                (),
                precision=precision,
            ),
        )
        shared = sessions.shared_files(sessions.members(os.getpid()))
        try:
            yield engine
        finally:
            engine.close()
            sessions.unlink_shared(shared)


@contextlib.contextmanager
def served() -> Iterator[tuple[int, Trace]]:
    """nnsight-serve with a tiny model, and what sends it one trace."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    with opened("vllm-serve") as engine:
        lm = engine.lm

        def trace(number: int) -> None:
            with lm.trace(PROMPTS[number % len(PROMPTS)]):
                # Raw: without a probe nobody has settled how a layer holds the stream.
                kept = lm.layers[number % 4].envoy.output[0].clone().save()
                logits = lm.logits.save()
            assert logits.isfinite().all()
            assert kept.isfinite().all()

        yield os.getpid(), trace


def written(pid: int) -> float:
    """MiB of a process's own memory that it has written. Pages of libraries are its own as well as
    long as no other process of the machine maps them: 80 MiB that come and go with those.

    Raises psutil.NoSuchProcess for one that has ended.
    """
    try:
        text = Path("/proc", str(pid), "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    sizes = {
        key: value.split() for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    return int(sizes["Private_Dirty"][0]) / 2**10


def show(sent: int, seconds: float, now: dict[str, Weight]) -> None:
    print(f"after {sent} traces, {seconds:.0f} s", flush=True)
    for name, one in sorted(now.items()):
        counts = f"{one.descriptors:5} descriptors {one.shared:3} shared {one.threads:4} threads"
        print(f"    {name:36}{one.memory:9.1f} MiB {counts}", flush=True)


def soaked(leader: int, trace: Trace, traces: int, seconds: float) -> int:
    """How many processes have grown."""
    begun, sent = time.monotonic(), 0
    warm: dict[str, Weight] = {}
    while sent < traces and time.monotonic() - begun < seconds:
        trace(sent)
        sent += 1
        if sent % max(1, traces // 10) == 0:
            now = weights(leader)
            warm = warm or now
            show(sent, time.monotonic() - begun, now)
    late = weights(leader)
    grown = [name for name, one in late.items() if name not in warm or one.grown(warm[name])]
    gone = sorted(warm.keys() - late.keys())
    took = time.monotonic() - begun
    print(f"{sent} of {traces} traces in {took:.0f} s; grown: {grown or 'none'}; gone: {gone}")
    return len(grown) + len(gone)


def main(given: Any) -> int:
    traces = given.traces or (2000 if given.serve else 10_000)
    with served() if given.serve else relayed(given.stages) as (leader, trace):
        return int(soaked(leader, trace, traces, given.seconds) > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=0)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3000.0)
    parser.add_argument("--serve", action="store_true")
    sys.exit(main(parser.parse_args()))

"""What a run takes on many machines.

    python bench/scale.py measure                    # a group on Ray beside the same one at home
    python bench/scale.py simulate RUN … --judge 12  # from the recorded times of stored runs

`simulate` has the order of a run (checkpoint and judging at home; reference, columns, reference
again on machines) and takes each group's seconds from those of the same column in the stored runs,
model after model. A machine runs what its processors have room for, first come first served, as
Ray does where all machines are alike. `--overhead` is added to each group on a machine: `measure`
says how much that is.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.runner.store import RunFolder
from conformance.spec.records import Group

#: What zygotes import: at home once for all groups, on a machine for each.
PRELOADED = ("", "conformance.engines.preload_hf", "conformance.engines.vllm.preload")

_EMPTY = 1000
_REFUSES = {"options": {"refuse": True}}

#: Groups of the harness's own, which every model has once.
OURS = ("build", "reference", "reference-forced")

#: At home: one core builds while the other judges.
HOME = 1


@dataclass(frozen=True)
class Task:
    """A group: `cpus` for `seconds`, once what it `needs` has ended. `place` is where it runs."""

    name: str
    seconds: float
    cpus: int = 1
    needs: tuple[str, ...] = ()
    place: str = "machines"


@dataclass
class _State:
    free: dict[str, list[int]]
    waiting: list[Task]
    running: list[tuple[float, int, str, int, Task]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    busy: float = 0.0


def makespan(tasks: Sequence[Task], machines: int, cpus: int) -> tuple[float, float]:
    """Seconds until the last has ended, and how much of the machines' processors was used."""
    free = {"machines": [cpus] * machines, "build": [HOME], "judge": [HOME]}
    state = _State(free, list(tasks))
    now, order = 0.0, itertools.count()
    while state.waiting or state.running:
        left = []
        for task in state.waiting:
            places = state.free[task.place]
            room = max(range(len(places)), key=places.__getitem__)
            ready = state.done.issuperset(task.needs)
            if not ready or places[room] < task.cpus:
                left.append(task)
                continue
            places[room] -= task.cpus
            ends = now + task.seconds
            heapq.heappush(state.running, (ends, next(order), task.place, room, task))
            if task.place == "machines":
                state.busy += task.seconds * task.cpus
        state.waiting = left
        if not state.running:
            raise ValueError(f"no machine has room for {left[0].name}")
        now, _, place, room, ended = heapq.heappop(state.running)
        state.free[place][room] += ended.cpus
        state.done.add(ended.name)
    return now, state.busy / (now * machines * cpus)


def recorded(runs: Sequence[RunFolder]) -> Mapping[str, list[Group]]:
    """The groups of stored runs by the names of their folders: those of a column that ask other
    settings of the engine are loads of their own.
    """
    found: dict[str, list[Group]] = defaultdict(list)
    for run in runs:
        for model, name in run.groups():
            group = run.group(model, name)
            if group is not None and group.seconds and not group.reused:
                found[name].append(group)
    return found


def tasks(
    groups: Mapping[str, Sequence[Group]],
    ranks: Mapping[str, int],
    *,
    models: int,
    overhead: float,
    judge: float,
) -> list[Task]:
    """A run of so many models, each with every column that was recorded."""
    made = []
    columns = [name for name in groups if name not in OURS]
    for model in range(models):

        def seconds(name: str, model: int = model) -> float:
            every = groups[name]
            return every[model % len(every)].seconds

        needs: tuple[str, ...] = ()
        if "build" in groups:
            needs = (f"{model}:build",)
            made.append(Task(*needs, seconds("build"), place="build"))
        first = f"{model}:reference"
        made.append(Task(first, overhead + seconds("reference"), needs=needs))
        own = []
        for name in columns:
            own.append(f"{model}:{name}")
            wide = ranks.get(groups[name][0].backend, 1)
            made.append(Task(own[-1], overhead + seconds(name), wide, (first,)))
        if "reference-forced" in groups:
            forced = f"{model}:reference-forced"
            made.append(Task(forced, overhead + seconds("reference-forced"), needs=tuple(own)))
            own = [forced]
        made.append(Task(f"{model}:judged", judge, needs=tuple(own), place="judge"))
    return made


def simulate(options: argparse.Namespace) -> None:
    runs = [RunFolder(path) for path in options.runs]
    groups = recorded(runs)
    ranks = {
        column.id: column.pipeline * column.tensor for run in runs for column in run.plan().columns
    }
    print(f"{'group':<48}{'seen':>5}{'seconds':>9}{'ranks':>7}")
    for name, every in sorted(groups.items()):
        mean = sum(group.seconds for group in every) / len(every)
        print(f"{name:<48}{len(every):>5}{mean:>9.1f}{ranks.get(every[0].backend, 1):>7}")
    made = tasks(
        groups, ranks, models=options.models, overhead=options.overhead, judge=options.judge
    )
    wide = sum(task.seconds * task.cpus for task in made if task.place == "machines")
    print(f"{options.models} models, {len(made)} tasks, {wide / 3600:.1f} processor hours")
    for machines in options.machines:
        seconds, used = makespan(made, machines, options.cpus)
        print(f"{machines:>4} machines of {options.cpus}: {seconds / 3600:7.2f} h, {used:.0%} used")


def measure(options: argparse.Namespace) -> None:
    """The same groups, which load nothing, at home and on a node of this machine."""
    from conformance.runner.cluster import connect
    from conformance.runner.scheduling import TimeLimits, run
    from tests.runner.cluster.nodes import nodes, planned

    limits = TimeLimits()
    with tempfile.TemporaryDirectory() as folder, nodes() as cluster:
        cluster.add("only")
        with connect(cluster.address) as joined:
            nothing = joined.ray.remote(num_cpus=1)(lambda: None)
            joined.ray.get(nothing.remote())
            since = time.monotonic()
            joined.ray.get([nothing.remote() for _ in range(_EMPTY)])
            took = (time.monotonic() - since) / _EMPTY
            print(f"an empty task of Ray's: {1000 * took:.2f} ms")
            for preload in PRELOADED:
                for name, allocate in (("at home", None), ("on Ray", joined.allocate(limits))):
                    root = Path(tempfile.mkdtemp(dir=folder))
                    groups = []
                    for number in range(options.groups):
                        plain = planned("healthy", root / str(number), job=_REFUSES)
                        launch = replace(plain.launch, preload=preload)
                        groups.append(replace(plain, id=str(number), launch=launch))
                    since = time.monotonic()
                    run(groups, logs=root / "logs", limits=limits, allocate=allocate)
                    each = (time.monotonic() - since) / options.groups
                    print(f"an empty group {name}, {preload or 'no engine'}: {each:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--groups", type=int, default=10)
    measuring.set_defaults(do=measure)
    simulating = verbs.add_parser("simulate")
    simulating.add_argument("runs", type=Path, nargs="+")
    simulating.add_argument("--models", type=int, default=200)
    simulating.add_argument("--machines", type=int, nargs="+", default=[1, 4, 32])
    simulating.add_argument("--cpus", type=int, default=2)
    for name in ("overhead", "judge"):
        simulating.add_argument(f"--{name}", type=float, default=0.0)
    simulating.set_defaults(do=simulate)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()

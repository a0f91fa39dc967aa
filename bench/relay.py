"""What interventions across two stages cost, as ratios measured in one run.

    python bench/relay.py [--model llama] [--rounds 15]

The model is one of models.yaml whose checkpoint a run has built. Engines run side by side
and take turns, so that what else the machine does hits all of them alike. "one stage" and
"two stages" run under vLLM's executor of several processes; "in process" is one stage
without it, what vLLM does by default, and "plain" two stages without the relay: what lies
between those two is vLLM's own. Exits 1 when a bar that is printed is not held.

    python bench/relay.py --real [--layers 32 --width 4096] [--out FILE]

prints milliseconds of a random Llama of that size instead, one engine after the other, on CUDA
where there is one: vLLM alone, nnsight's worker, and two stages with the relay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engines" / "relay"))

from relay_lab import Engine, Lab, Spec

from conformance.runner.planning import plan
from conformance.spec.checkpoints import cache_folder, locate
from conformance.spec.inputs import manifest

#: Programs of bench/relay_real.py.
PROGRAMS = ("touches_nothing", "reads_all_layers", "writes_across_stages", "writes_two_prompts")

#: What the ratio to one stage, by medians, must not exceed.
BARS = {
    ("llama", "reads_all_layers"): 1.4,
    ("llama", "writes_two_prompts"): 1.7,
    ("smollm2-135m", "reads_all_layers"): 1.15,
    ("smollm2-135m", "writes_two_prompts"): 1.15,
}


#: Turns each engine takes with a program.
TURNS = 3

#: vLLM's processes spin on their queues for a second after the last message.
IDLE = 1.1


def measure(engines: dict[str, Engine], program: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round on each engine; they take turns, and the others are idle."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(TURNS):
        for name, engine in engines.items():
            time.sleep(IDLE)
            for number in range(2 + rounds // TURNS):
                seconds = engine.run("timed", program)
                if number >= 2:
                    times[name].append(seconds)
    return times


def sent(engine: Engine) -> tuple[int, int]:
    """Steps and bytes so far, summed over the ranks."""
    ranks = engine.run("state")
    return ranks[0]["steps"], sum(rank["bytes"] for rank in ranks)


def ratio(times: dict[str, list[float]], base: str, over: str) -> float:
    """How many times the median of one is that of the other."""
    return statistics.median(times[over]) / statistics.median(times[base])


def judged(measured: float, bar: float | None) -> tuple[str, bool]:
    """What is printed of a bar, and whether it is held; there may be none."""
    if bar is None:
        return "", True
    held = measured <= bar
    return f"   bar {bar} {'held' if held else 'NOT HELD'}", held


def line(name: str, times: dict[str, list[float]], base: str, over: str) -> str:
    """Milliseconds of both, and their ratio by medians and by the fastest rounds."""
    low, high = times[base], times[over]
    middle = ratio(times, base, over)
    return (
        f"{name:26} {base:>12} {statistics.median(low) * 1e3:8.2f} ms   {over:>12} "
        f"{statistics.median(high) * 1e3:8.2f} ms   ratio {middle:5.2f}   "
        f"fastest {min(high) / min(low):5.2f}"
    )


def checkpoint(name: str) -> str:
    """The folder of a model of models.yaml. Exits when no run has built it."""
    known = manifest.load(Path("models.yaml"))
    (model,) = plan.choose(known.models, [name], "model")
    found = locate(model, cache_folder())
    if found is None:
        sys.exit(f"{name} is not built yet → conformance run -m {name} -b hf -k clean")
    return str(found.path)


#: The engines of the table at real size, by title.
REAL = {
    "PP=1 vLLM": {"kind": "stock", "pipeline": 1},
    "PP=1": {"kind": "plain", "pipeline": 1},
    "PP=2 vLLM": {"kind": "stock", "pipeline": 2},
    "PP=2 plain": {"kind": "plain", "pipeline": 2},
    "PP=2 relay": {"kind": "relay", "pipeline": 2},
}

#: What a program on two stages with the relay may take, as a share of plain generation on two.
REAL_BARS = {
    "touches_nothing": 1.25,
    "reads_one_layer": 1.25,
    "steers_one_layer": 1.25,
    "writes_across_stages": 1.25,
    "reads_all_layers": 1.5,
}

#: How far two runs of one program are apart by themselves.
SPREAD = 0.03


def medians(asked: dict[str, Any], out: TextIO | None) -> dict[str, float]:
    """Milliseconds by program on one engine, opened and closed again."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "relay_real.py"), json.dumps(asked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = child.stdout.splitlines()
    found = [json.loads(line.partition("@")[2]) for line in lines if line.startswith("@{")]
    if child.returncode:
        print("\n".join(lines[-30:]), flush=True)
    for each in found:
        if out is not None:
            out.write(json.dumps({**asked, **each}) + "\n")
    return {each["program"]: each["median"] for each in found if "program" in each}


def real(arguments: Any) -> int:
    """Print the table at real size; 1 when a bar is not held."""
    table: dict[str, dict[str, float]] = {}
    with Path(arguments.out).open("a") if arguments.out else nullcontext() as out:
        for title, kind in REAL.items():
            if arguments.only and title not in arguments.only:
                continue
            profile = arguments.profile if title == "PP=2 relay" else []
            size = {"layers": arguments.layers, "width": arguments.width}
            asked = {**kind, **size, "rounds": arguments.rounds, "profile": profile}
            table[title] = medians(asked, out)
            print(f"{title}: {table[title]}", flush=True)
    relayed = table.get("PP=2 relay", {})
    # On the same engine, whose turns are next to the others': a host changes from minute to minute.
    plain = relayed.get("no_block")
    beside = table.get("PP=2 plain", {}).get("no_block")
    if plain and beside:
        print(f"no block, relay / plain: {plain / beside:.2f}", flush=True)
    print(f"| program | {' | '.join(table)} | relay / no block |")
    missed = 0
    for program in relayed or next(iter(table.values()), {}):
        cells = [f"{times[program]:.0f}" if program in times else "" for times in table.values()]
        words = ""
        if plain and program in relayed:
            share, bar = relayed[program] / plain, REAL_BARS.get(program)
            held = bar is None or share <= bar + SPREAD
            missed += not held
            words = f"{share:.2f}" + (f" (bar {bar}{'' if held else ', NOT HELD'})" if bar else "")
        print(f"| {program.replace('_', ' ')} | {' | '.join(cells)} | {words} |", flush=True)
    return 1 if missed else 0


def main(arguments: Any) -> int:
    """The exit code: 1 when a bar is not held."""
    model = checkpoint(arguments.model)
    missed = 0
    lab = Lab()
    try:
        one = lab.engine(Spec(model, 1, 1, (("distributed_executor_backend", "mp"),)))
        alone, two = lab.engine(Spec(model, 1)), lab.engine(Spec(model, 2))
        plain = lab.engine(Spec(model, 2, 1, (("relay", False),)))
        for program in PROGRAMS:
            before = sent(two)
            times = measure({"one stage": one, "two stages": two}, program, arguments.rounds)
            after = sent(two)
            steps = max(1, after[0] - before[0])
            measured = ratio(times, "one stage", "two stages")
            words, held = judged(measured, BARS.get((arguments.model, program)))
            missed += not held
            print(line(program.replace("_", " "), times, "one stage", "two stages"), end="")
            print(f"   {(after[1] - before[1]) / steps:8.0f} bytes a step", end="")
            print(words, flush=True)
            times = measure({"in process": alone, "two stages": two}, program, arguments.rounds)
            print(line("", times, "in process", "two stages"), flush=True)
        named = {"plain": plain, "relay": two, "one stage": one, "in process": alone}
        for low, high in (("plain", "relay"), ("one stage", "plain"), ("in process", "plain")):
            times = measure({low: named[low], high: named[high]}, "no_block", arguments.rounds)
            print(line("no block", times, low, high), flush=True)
    finally:
        lab.close()
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--only", action="append", help="one of the engines of --real")
    parser.add_argument("--profile", action="append", default=[], help="a program, under cProfile")
    parser.add_argument("--out", help="a file for every round's time")
    given = parser.parse_args()
    sys.exit(real(given) if given.real else main(given))

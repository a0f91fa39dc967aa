"""What interventions across two stages cost, as ratios measured in one run.

    python bench/relay.py [checkpoint folder] [--rounds 15]

Without a folder a tiny random Llama is built. Engines run side by side and take turns, so
that what else the machine does hits all of them alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engines"))

from relay_lab import Engine, Lab, Spec

#: The programs of `relay_programs`, and the bar of the ratio to one stage: tiny, SmolLM2-135M.
PROGRAMS = {
    "bench_nothing": (None, None),
    "bench_read_all": (1.4, 1.15),
    "bench_cross_write": (None, None),
    "bench_writes_two_prompts": (1.7, 1.15),
}


def measure(engines: dict[str, Engine], program: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round on each engine, the engines taking turns."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 2):
        for name, engine in engines.items():
            seconds = engine.run(program)
            if number >= 2:
                times[name].append(seconds)
    return times


def sent(engine: Engine) -> tuple[int, int]:
    """Steps and bytes so far, summed over the ranks."""
    ranks = engine.run("state")
    return ranks[0]["steps"], sum(rank["bytes"] for rank in ranks)


def line(name: str, times: dict[str, list[float]], base: str, over: str) -> str:
    """Milliseconds of both, and their ratio by medians and by the fastest rounds."""
    low, high = times[base], times[over]
    middle = statistics.median(high) / statistics.median(low)
    return (
        f"{name:26} {base:>12} {statistics.median(low) * 1e3:8.2f} ms   {over:>12} "
        f"{statistics.median(high) * 1e3:8.2f} ms   ratio {middle:5.2f}   "
        f"fastest {min(high) / min(low):5.2f}"
    )


def main(arguments: Any) -> None:
    model = arguments.checkpoint or "llama-4"
    lab = Lab()
    try:
        one, two = lab.engine(Spec(model, 1)), lab.engine(Spec(model, 2))
        plain = lab.engine(Spec(model, 2, 1, (("relay", False),)))
        for program, bars in PROGRAMS.items():
            before = sent(two)
            times = measure({"one stage": one, "two stages": two}, program, arguments.rounds)
            after = sent(two)
            steps = max(1, after[0] - before[0])
            bar = bars[1 if arguments.checkpoint else 0]
            print(line(program.removeprefix("bench_"), times, "one stage", "two stages"), end="")
            print(f"   {(after[1] - before[1]) / steps:8.0f} bytes a step", end="")
            print("" if bar is None else f"   bar {bar}", flush=True)
        engines = {"plain": plain, "relay": two}
        times = measure(engines, "bench_untraced", arguments.rounds)
        print(line("no block", times, "plain", "relay"))
        engines = {"one stage": one, "two stages": plain}
        times = measure(engines, "bench_untraced", arguments.rounds)
        print(line("no block, no relay", times, "one stage", "two stages"))
    finally:
        lab.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args())

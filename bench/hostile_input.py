"""Is anything let in, lost or brought down by what is read? Inputs drawn by hypothesis, by kind.

    python bench/hostile_input.py [--inputs 100000] [--seed 1] [KIND ...]

Every file that is read (tests/hostile/readers.py) and the command line
(tests/hostile/arguments.py) gets as many. An input is *refused* (a ConformanceError: exit code 2),
*accepted*, or *lost*: another exception, a write outside of its folder, an import that it names, a
connection, more than 5 s of processor time or 500 MiB. Exits 1 when one is lost, and shows the
first of each sort.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.hostile import arguments, readers

#: Hypothesis keeps what it has drawn: a batch is forgotten when the next one begins.
BATCH = 1000

Try = Callable[[object], str]


def drawn(inputs: st.SearchStrategy[object], attempt: Try, number: int, begin: int) -> Counter[str]:
    """How so many inputs ended; the words of those that were lost."""
    ends: Counter[str] = Counter()

    def take(value: object) -> None:
        if ends.total() >= number:
            return
        words = attempt(value)
        if words.startswith("took"):
            words = attempt(value)  # without an import, or a wait for the machine
        if words not in {"accepted", "refused"} and not ends[words]:
            print(f"    lost: {words[:300]}\n      {value!r:.300}", flush=True)
        ends[words] += 1

    batch = 0
    while ends.total() < number and batch < 3 * number:
        check = settings(
            max_examples=min(BATCH, number - ends.total()),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(inputs)(take))
        seed(begin * 10_000_019 + batch)(check)()
        batch += 1
    return ends


def kinds(outer: Path) -> dict[str, tuple[st.SearchStrategy[object], Try]]:
    found = {
        name: (kind.inputs, lambda data, kind=kind: readers.tried(kind, data, outer))
        for name, kind in readers.KINDS.items()
    }
    on_command_line: Try = lambda it: arguments.tried(it, outer)  # noqa: E731 - its type is Try's
    return {**found, "command line": (arguments.COMMANDS, on_command_line)}


def main(given_: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        every = kinds(Path(folder))
        names = given_.kind or list(every)
        arguments.tried(("judge", "one"), Path(folder))  # imports torch, which no input pays for
        print(f"{'kind':20}{'tried':>9}{'refused':>9}{'accepted':>9}{'lost':>7}{'s':>8}")
        total: Counter[str] = Counter()
        for index, name in enumerate(names):
            begun = time.monotonic()
            number = (index + 1) * given_.inputs // len(names) - index * given_.inputs // len(names)
            ends = drawn(*every[name], number, given_.seed)
            row = Counter(tried=ends.total(), refused=ends["refused"], accepted=ends["accepted"])
            row["lost"] = row["tried"] - row["refused"] - row["accepted"]
            total += row
            seconds = time.monotonic() - begun
            print(_line(name, row, seconds), flush=True)
        print(_line("in all", total, 0.0))
        return int(total["lost"] > 0)


def _line(name: str, row: Counter[str], seconds: float) -> str:
    counts = "".join(f"{row[key]:9}" for key in ("tried", "refused", "accepted"))
    return f"{name:20}{counts}{row['lost']:7}{seconds:8.0f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="*")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(main(parser.parse_args()))

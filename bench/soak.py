"""Many traces on one engine: does anything hang or grow?

python bench/soak.py [--stages 2] [--traces 500]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engines"))

from relay_compare import GROWING
from relay_lab import Lab, ProgramError, Spec

#: One to four prompts each; errors too.
PROGRAMS = [
    ("read_all",),
    ("backward_between_steps",),
    ("wave", 2, 3),
    ("wave", 3, 4),
    ("wave", 4, 3),
    ("cross_write",),
    ("invokes",),
    ("samples_forced",),
    ("cached",),
    ("raises", "between"),
    ("stopped",),
    ("registered",),
    ("several_samples",),
]


def main(arguments: Any) -> None:
    lab = Lab()
    started = time.monotonic()
    early: list[int] = []
    try:
        engine = lab.engine(Spec("llama-6", arguments.stages))
        for number in range(arguments.traces):
            program = PROGRAMS[number % len(PROGRAMS)]
            try:
                engine.run(*program, timeout=120)
            except ProgramError as error:
                if program[0] != "raises":
                    raise SystemExit(f"trace {number}: {error}") from error
            ranks = engine.run("state")
            left = [{k: v for k, v in r.items() if v and k not in GROWING} for r in ranks]
            if any(left):
                raise SystemExit(f"trace {number}, {program}: left {left}")
            if number == 50:
                early = [rank["resident"] for rank in ranks]
        late = [rank["resident"] for rank in engine.run("state")]
    finally:
        lab.close()
    growth = [after / before - 1 for before, after in zip(early, late, strict=True)]
    print(
        f"{arguments.traces} traces at {arguments.stages} stages in "
        f"{time.monotonic() - started:.0f} s: nothing left on any rank; resident memory since "
        f"trace 50: {', '.join(f'{g:+.2%}' for g in growth)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--traces", type=int, default=500)
    main(parser.parse_args())

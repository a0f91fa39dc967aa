"""Is anything lost when a run is killed, or finds no room? Trials drawn from a seed, on a tiny run.

    python bench/campaign.py [--trials 204] [--seed 1] [--backend hf ...] [--folder FOLDER]
                             [--at-once 2]

A trial starts a run, does one thing to it (a kill: who × phase × signal, of Ray's processes as well
where it runs on a cluster of its own; or a machine that refuses something), waits for its end, goes
on with `run --resume latest` where it did not come to a good one, and compares with an undisturbed
run. *Held*: no traceback and an exit code that is documented; no process, file in shared memory or
temporary folder left; every verdict and every figure as undisturbed. *Missed*: a kill whose moment
did not come. Prints tried, held, missed and lost by kind, and every loss; exits 1 when there is
one.

With --folder what was tried is kept in it, and a later call goes on after it. `--at-once 2` tries
every second trial beside the others, each half with processes and a /dev/shm of its own
(unshare; root alone may), so that none takes another's files for its own or ends what another's
run has left. `--part 2/8` tries every eighth from the second and nothing else.

The 204 trials that are the default take a little more than an hour, and half of that two at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.disturbances import LOOK, killed, now, refused
from bench.trials import SHARED, Place, Trial, Whole, drawn, end, figures

#: Seconds that processes and files may take to go once a run has ended.
GONE = 60.0

#: Where a run has its folder when the path to a trial's own is too long for a socket.
SHORT = Path("/tmp")

#: What trials are on: mostly what starts in seconds, for nearly all that can be lost is the run's
#: own, and what has processes of its own: engines, and a cluster.
BACKENDS = (
    *["hf"] * 23,
    *["vllm-pp2", "vllm-async", "vllm-serve"] * 3,
    *["hf on ray"] * 2,
)

#: What one of several at once has for itself.
APART = (
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"),
    'mount -t tmpfs tmpfs /dev/shm && exec "$@"',
    "sh",
)


def disturbed(trial: Trial, place: Place, whole: Whole) -> str:
    """What was lost, "" for nothing, "missed" where the moment of a kill did not come."""
    shared = set(_outside())
    code, happened = killed(trial, place, whole) if trial.who else refused(trial, place)
    if happened and happened != "missed":
        return f"{happened}: {place.output()[-600:]}"
    place.environment.clear()
    # A run that begins ends what killed ones have left. Half of them find nobody left to end, and
    # half go on at once, while the first one's processes are still ending.
    if trial.number % 2 == 0 and (left := _still_there(place)):
        return f"left before going on: {left}"
    if code != 0:
        resumed = (place.reports / "latest" / "plan.json").exists()
        again = place.command(trial.backend, *(("--resume", "latest") * resumed))
        if (code := end(place.start(again))) != 0:
            return f"going on ended with {code}: {place.output()[-600:]}"
    if "Traceback" in place.output():
        return f"a traceback: {place.output()[-900:]}"
    if (seen := figures(place.reports)) != whole.figures:
        other = [key for key, one in whole.figures.items() if seen.get(key) != one]
        return f"other figures in {other}: {place.output()[-600:]}"
    return _left(place, shared) or happened


def _still_there(place: Place) -> list[str]:
    """The processes of a trial that do not end by themselves."""
    until = time.monotonic() + GONE
    while (left := [_words(one) for one in place.processes()]) and time.monotonic() < until:
        time.sleep(0.2)
    return left


def _outside() -> list[Path]:
    """What runs of everybody may have outside of a trial's place: shared memory, and the folders of
    those whose sockets would have had too long a path in their own.
    """
    return [*SHARED.iterdir(), *SHORT.glob("cfm-run-*")]


def _left(place: Place, shared: set[Path]) -> str:
    """Processes, temporary folders and shared memory that are still there."""
    until = time.monotonic() + GONE
    while True:
        processes = [_words(one) for one in place.processes()]
        folders = [path.name for path in (place.folder / "tmp").glob("cfm-run-*")]
        # Names of other people's runs come and go: only those of the dead ones are ours to find.
        memory = [path.name for path in set(_outside()) - shared if _forgotten(path)]
        if not (processes or folders or memory):
            return ""
        if time.monotonic() > until:
            return f"left: {processes} {folders} {memory}"
        time.sleep(0.2)


def _words(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.status()} {process.pid} {' '.join(process.cmdline())[-80:]}"
    return f"{process.pid}, which has just ended"


def _forgotten(path: Path) -> bool:
    """Whether nobody has it open any more: then whoever made it has ended without a thought."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if str(path) in Path(f"/proc/{pid}/maps").read_text():
                return False
            if any(one.readlink() == path for one in Path(f"/proc/{pid}/fd").iterdir()):
                return False
    return path.exists()


def _place(folder: Path, mark: str, checkpoints: Path | None) -> Place:
    """An empty one, but for the checkpoints, which no trial is about."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("cache", "tmp"):
        (folder / name).mkdir(parents=True)
    if checkpoints is not None:
        shutil.copytree(checkpoints, folder / "cache" / "checkpoints", symlinks=True)
    return Place(folder, mark)


def _whole(folder: Path, backend: str) -> Whole:
    place = Place(folder / f"whole-{backend.replace(' ', '-')}", f"whole-{os.getpid()}")
    kept = place.folder / "seconds.json"
    if not kept.exists():
        # The first makes what later ones find, the checkpoint for one.
        place = _place(place.folder, place.mark, None)
        _timed(place, backend)
        shutil.rmtree(place.reports)
        shutil.rmtree(place.folder / "cache" / "observations", ignore_errors=True)
        kept.write_text(json.dumps(_timed(place, backend), indent=1))
    seconds = json.loads(kept.read_text())
    return Whole(figures(place.reports), seconds, place.folder / "cache" / "checkpoints")


def _timed(place: Place, backend: str) -> dict[str, float]:
    """How long a run stays in each phase when it is first there."""
    process = place.start(place.command(backend))
    seconds: dict[str, float] = {}
    before, since = "", time.monotonic()
    while process.poll() is None:
        at = now(place)
        name = f"{at.of} {at.phase}"
        if name != before:
            seconds.setdefault(before, time.monotonic() - since)
            before, since = name, time.monotonic()
        time.sleep(LOOK)
    seconds.setdefault(before, time.monotonic() - since)
    if process.returncode != 0:
        words = place.output()[-2000:]
        raise SystemExit(f"undisturbed, it ended with {process.returncode}:\n{words}")
    return seconds


def run(trials: Sequence[Trial], folder: Path) -> dict[str, str]:
    """What came of each trial, by its number and words."""
    kept = folder / "tried.json"
    tried: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    for trial in trials:
        if trial.name in tried:
            continue
        begun = time.monotonic()
        whole = _whole(folder, trial.backend)
        place = _place(folder / "trial", f"{os.getpid()}-{trial.number}", whole.checkpoints)
        lost = disturbed(trial, place, whole)
        for process in place.processes():
            process.kill()
        tried[trial.name] = lost
        kept.write_text(json.dumps(tried, indent=1))
        end = "held" if not lost else lost if lost == "missed" else f"LOST: {lost}"
        print(f"{trial.name}: {end} ({time.monotonic() - begun:.0f} s)", flush=True)
    return tried


def table(trials: Sequence[Trial], tried: Mapping[str, str]) -> tuple[str, int]:
    """Tried, held, missed and lost by kind, and of kills by phase and signal as well; and how many
    were lost.
    """
    kinds: dict[str, Counter[str]] = {}
    for trial in trials:
        lost = tried.get(trial.name)
        if lost is None:
            continue
        end = "held" if not lost else "missed" if lost == "missed" else "lost"
        names = [" ".join(filter(None, (trial.kind, trial.who)))]
        if trial.who:
            phase = " ".join(filter(None, (trial.of, trial.phase)))
            names += [f"  in {phase}", f"  {trial.signal}"]
        for name in (*names, f"on {trial.backend}", "in all"):
            kinds.setdefault(name, Counter())[end] += 1
    lines = [f"{'kind':30}{'tried':>7}{'held':>7}{'missed':>8}{'lost':>6}"]
    for name, row in sorted(kinds.items(), key=lambda one: _order(one[0])):
        line = f"{name:30}{row.total():7}{row['held']:7}{row['missed']:8}{row['lost']:6}"
        lines.append(line)
    return "\n".join(lines), kinds.get("in all", Counter())["lost"]


def _order(name: str) -> tuple[int, str]:
    """Who was killed, in which phase, by which signal; what was refused; on what; in all."""
    starts = ("kill", "  in", "  SIG", "", "on ", "in all")
    found = [place for place, start in enumerate(starts) if start and name.startswith(start)]
    return (found[-1] if found else starts.index(""), name)


def at_once(given: argparse.Namespace, folder: Path) -> dict[str, str]:
    """What came of all trials, tried in so many processes side by side."""
    asked = ("--trials", given.trials, "--seed", given.seed)
    backends = [word for name in given.backend or () for word in ("--backend", name)]
    parts = [
        subprocess.Popen(
            [*APART, sys.executable, __file__]
            + [str(word) for word in (*asked, *backends)]
            + ["--part", f"{part}/{given.at_once}", "--folder", str(folder / f"part-{part}")]
        )
        for part in range(1, given.at_once + 1)
    ]
    try:
        # 1: a trial was lost, and the table says so.
        if failed := [one.returncode for one in parts if one.wait() not in {0, 1}]:
            raise SystemExit(f"a part of the campaign ended with {failed[0]}")
    finally:
        for one in parts:
            one.terminate()
    tried: dict[str, str] = {}
    for kept in folder.glob("part-*/tried.json"):
        tried |= json.loads(kept.read_text())
    return tried


def main(given: argparse.Namespace) -> int:
    # In a shell's background some are ignored, and would be by every run that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        trials = drawn(given.trials, given.seed, given.backend or BACKENDS)
        if given.at_once > 1:
            tried = at_once(given, folder.absolute())
        else:
            part, parts = map(int, given.part.split("/"))
            trials = trials[part - 1 :: parts]
            tried = run(trials, folder.absolute())
        text, lost = table(trials, tried)
        untried = sum(trial.name not in tried for trial in trials)
        print(text + (f"\n{untried} were not tried" if untried else ""))
        return int(lost > 0 or untried > 0)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=204)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--at-once", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main(arguments().parse_args()))

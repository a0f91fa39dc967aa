"""Is anything lost when a run is killed, or finds no room? Trials drawn from a seed, on a tiny run.

    python bench/campaign.py [--trials 20] [--seed 1] [--backend hf ...] [--folder FOLDER]

A trial starts a run, does one thing to it (a kill: who × phase × signal; or a machine that refuses
something), waits for its end, goes on with `run --resume latest` where nothing is refused, and
compares with an undisturbed run. *Held*: no traceback and an exit code that is documented; no
process, file in shared memory or temporary folder left; every verdict and every figure as
undisturbed. *Missed*: a kill whose moment did not come. Prints tried, held, missed and lost by
kind, and every loss; exits 1 when there is one.

With --folder what was tried is kept in it, and a later call goes on after it. `--lock FILE` holds
that file's lock during trials, and gives it up every two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
MARK = "CONFORMANCE_CAMPAIGN"

SHARED = Path("/dev/shm")

WHO = ("parent", "zygote", "worker", "engine")
PHASES = ("plan", "import", "load", "cell", "judge")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGSEGV", "SIGABRT")
REFUSED = (
    "no room for a file",
    "no room in shared memory",
    "no room in temporary files",
    "little memory",
    "ASCII locale",
    "no HOME",
    "reports cannot be written",
    "two runs on one cache",
    "umask 077",
    "the clock jumps",
)

#: Seconds a run may take, and that processes and files may take to go once it has ended.
PATIENCE, GONE = 400.0, 15.0

#: After so many seconds others have their turn.
TURN = 120.0

Figures = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """`kind` is "kill" or one of `REFUSED`; the rest is a kill's."""

    number: int
    kind: str
    backend: str
    who: str = ""
    phase: str = ""
    signal: str = ""
    delay: float = 0.0

    @property
    def words(self) -> str:
        return " ".join(filter(None, (self.kind, self.who, self.phase, self.signal, self.backend)))


@dataclass
class Place:
    """A trial's own cache, reports and temporary folder."""

    folder: Path
    mark: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONFORMANCE_CACHE": str(self.folder / "cache"),
            "TMPDIR": str(self.folder / "tmp"),
            MARK: self.mark,
            **self.environment,
        }

    def command(self, backend: str, *more: str) -> list[str]:
        cells = ("-m", "llama", "-b", backend, "-k", "ablation", "--precision", "float32")
        asked = () if "--resume" in more else cells
        place = ("--reports", str(self.reports), "-j", "1")
        return [sys.executable, "-m", "conformance.cli", "run", *asked, *place, *more]

    def start(self, command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        with (self.folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.variables(),
                stdout=output,
                stderr=output,
                start_new_session=True,
                **more,
            )

    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = process.environ().get(MARK) == self.mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def drawn(trials: int, seed: int, backends: Sequence[str]) -> list[Trial]:
    """Kills and refusals in turn; the same for the same seed, however many."""
    draw = random.Random(seed)
    found = []
    for number in range(trials):
        backend = draw.choice(list(backends))
        if number % 4 == 3:
            found.append(Trial(number, draw.choice(REFUSED), backend))
            continue
        # Transformers runs in the worker itself.
        who = draw.choice(WHO[:-1] if backend == "hf" else WHO)
        phase = draw.choice(PHASES)
        found.append(
            Trial(number, "kill", backend, who, phase, draw.choice(SIGNALS), draw.uniform(0, 1))
        )
    return found


def figures(reports: Path) -> Figures:
    """All that a run says of its cells, but for how long they took and what the run is called."""
    document = json.loads((reports / "latest" / "results.json").read_text())
    kept = ("verdict", "diagnosis", "observations", "relations", "gain", "worst_site")
    return {cell["id"]: {key: cell.get(key) for key in kept} for cell in document["cells"]}


def disturbed(trial: Trial, place: Place, whole: Figures) -> str:
    """What was lost, "" for nothing, "missed" where the moment of a kill did not come."""
    shared = set(SHARED.iterdir())
    happened = _killed(trial, place) if trial.kind == "kill" else _refused(trial, place)
    if happened and happened != "missed":
        return happened
    place.environment.clear()
    resumed = (place.reports / "latest" / "plan.json").exists()
    code = _end(place.start(place.command(trial.backend, *(("--resume", "latest") * resumed))))
    if code != 0:
        return f"going on ended with {code}: {place.output()[-600:]}"
    if "Traceback" in place.output():
        return f"a traceback: {place.output()[-900:]}"
    if (seen := figures(place.reports)) != whole:
        return f"other figures in {[key for key in whole if seen.get(key) != whole[key]]}"
    return _left(place, shared) or happened


def _end(process: subprocess.Popen[bytes]) -> int | str:
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"nothing within {PATIENCE:.0f} s"


def _left(place: Place, shared: set[Path]) -> str:
    """Processes, temporary folders and shared memory that are still there."""
    until = time.monotonic() + GONE
    while True:
        processes = [" ".join(one.cmdline())[-80:] for one in _living(place.processes())]
        folders = [path.name for path in (place.folder / "tmp").glob("cfm-run-*")]
        # Names of other people's runs come and go: only those of the dead ones are ours to find.
        memory = [path.name for path in set(SHARED.iterdir()) - shared if _forgotten(path)]
        if not (processes or folders or memory):
            return ""
        if time.monotonic() > until:
            return f"left: {processes} {folders} {memory}"
        time.sleep(0.2)


def _living(processes: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    for process in processes:
        if process.is_running():
            yield process


def _forgotten(path: Path) -> bool:
    """Whether nobody has it open any more: then whoever made it has ended without a thought."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if str(path) in Path(f"/proc/{pid}/maps").read_text():
                return False
            if any(one.readlink() == path for one in Path(f"/proc/{pid}/fd").iterdir()):
                return False
    return path.exists()


# --- kills -------------------------------------------------------------------------------------


def _killed(trial: Trial, place: Place) -> str:
    process = place.start(place.command(trial.backend))
    number = signal.Signals[trial.signal]
    hit = False
    while process.poll() is None:
        if _phase(place) == trial.phase:
            time.sleep(trial.delay)
            hit = _hit(_who(trial.who, process.pid), number)
            break
        time.sleep(0.02)
    code = _end(process)
    if not hit:
        return "missed" if code == 0 else f"undisturbed, it ended with {code}"
    allowed = {0, 1, 2, 3, 130, -number} if trial.who == "parent" else {0}
    return "" if code in allowed else f"it ended with {code}: {place.output()[-600:]}"


def _hit(who: Sequence[psutil.Process], number: signal.Signals) -> bool:
    for process in who[:1]:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            return True
    return False


def _phase(place: Place) -> str:
    """Where the run is, by what it has written."""
    run = place.reports / "latest"
    if not run.exists():
        return "plan"
    events = [path.read_text() for path in run.glob("groups/*/*/events.jsonl")]
    if not (run / "unfinished").exists():
        return "judge"
    if not events:
        return "import"
    last = max(events, key=_latest)
    return "cell" if '"loaded"' in last else "load"


def _latest(events: str) -> float:
    with contextlib.suppress(ValueError, KeyError, IndexError):
        return float(json.loads(events.splitlines()[-1])["at"])
    return 0.0


def _who(name: str, parent: int) -> list[psutil.Process]:
    """The processes of that name: the one that began last comes first."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(parent)
        zygotes = [
            one for one in top.children() if "conformance.worker.zygote" in " ".join(one.cmdline())
        ]
        workers = [worker for zygote in zygotes for worker in zygote.children()]
        inner = [child for worker in workers for child in worker.children(recursive=True)]
        found = {"parent": [top], "zygote": zygotes, "worker": workers, "engine": inner}[name]
        return sorted(found, key=lambda one: -one.create_time())
    return []


# --- refusals ----------------------------------------------------------------------------------


def _refused(trial: Trial, place: Place) -> str:
    command = place.command(trial.backend)
    match trial.kind:
        case "no room for a file":
            code = _end(place.start(command, preexec_fn=_limited(resource.RLIMIT_FSIZE, 40_000)))
        case "little memory":
            code = _end(place.start(command, preexec_fn=_limited(resource.RLIMIT_AS, 1 << 30)))
        case "no room in shared memory":
            code = _end(place.start(_in_little("/dev/shm", command)))
        case "no room in temporary files":
            code = _end(place.start(_in_little(place.variables()["TMPDIR"], command)))
        case "reports cannot be written":
            place.reports.write_text("")
            code = _end(place.start(command))
            place.reports.unlink()
            return "" if code == 2 else f"it ended with {code}: {place.output()[-600:]}"
        case "two runs on one cache":
            both = [place.start(command), place.start(command)]
            codes = [_end(one) for one in both]
            return "" if codes == [0, 0] else f"they ended with {codes}: {place.output()[-600:]}"
        case "umask 077":
            code = _end(place.start(command, umask=0o077))
            return "" if code == 0 else f"it ended with {code}: {place.output()[-600:]}"
        case "the clock jumps":
            place.environment["LD_PRELOAD"] = str(_jumping_clock(place.folder))
            code = _end(place.start(command))
            return "" if code == 0 else f"it ended with {code}: {place.output()[-600:]}"
        case _:
            place.environment.update(_VARIABLES[trial.kind])
            code = _end(place.start(command))
            return "" if code == 0 else f"it ended with {code}: {place.output()[-600:]}"
    return "" if code in {0, 1, 2, 3} else f"it ended with {code}: {place.output()[-600:]}"


_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "ASCII locale": {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    },
    "no HOME": {"HOME": "/nonexistent"},
}


#: The time of day goes back and forth by a day, every two seconds of the time that only grows.
_CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    struct timespec grows;
    long ended = syscall(SYS_clock_gettime, clock, now);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &grows);
    if (!ended && clock == CLOCK_REALTIME) now->tv_sec += 86400 * (grows.tv_sec / 2 % 3 - 1);
    return ended;
}
time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *kept, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    kept->tv_sec = now.tv_sec;
    kept->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def _jumping_clock(folder: Path) -> Path:
    """A library that stands in for the system's clock."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def _limited(what: int, most: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(what, (most, most))

    return limit


def _in_little(folder: str, command: Sequence[str]) -> list[str]:
    """The command where a folder has 64 KiB, which nobody else sees."""
    little = f'mount -t tmpfs -o size=64k tmpfs {folder} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", little, "sh", *command]


# --- the whole ---------------------------------------------------------------------------------


class Turn:
    """This program's turn on a machine that it shares, by a file's lock."""

    def __init__(self, lock: Path | None) -> None:
        self.file = lock.open("a") if lock is not None else None
        self.until = 0.0

    def take(self) -> None:
        """Wait for it, and let others have theirs where it has been long."""
        if self.file is None or time.monotonic() < self.until:
            return
        fcntl.flock(self.file, fcntl.LOCK_UN)
        time.sleep(0.5)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.until = time.monotonic() + TURN


def _place(folder: Path, mark: str, checkpoints: Path | None) -> Place:
    """An empty one, but for the checkpoints, which no trial is about."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("cache", "tmp"):
        (folder / name).mkdir(parents=True)
    if checkpoints is not None:
        shutil.copytree(checkpoints, folder / "cache" / "checkpoints", symlinks=True)
    return Place(folder, mark)


def _whole(folder: Path, backend: str) -> tuple[Figures, Path]:
    place = Place(folder / f"whole-{backend}", f"whole-{os.getpid()}")
    if not (place.reports / "latest" / "results.json").exists():
        place = _place(place.folder, place.mark, None)
        if (code := _end(place.start(place.command(backend)))) != 0:
            raise SystemExit(f"undisturbed, it ended with {code}:\n{place.output()[-2000:]}")
    return figures(place.reports), place.folder / "cache" / "checkpoints"


def run(trials: Sequence[Trial], folder: Path, lock: Path | None = None) -> dict[str, str]:
    """What came of each trial, by its number and words."""
    kept = folder / "tried.json"
    tried: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    turn = Turn(lock)
    for trial in trials:
        name = f"{trial.number}: {trial.words}"
        if name in tried:
            continue
        turn.take()
        begun = time.monotonic()
        whole, checkpoints = _whole(folder, trial.backend)
        place = _place(folder / "trial", f"{os.getpid()}-{trial.number}", checkpoints)
        lost = disturbed(trial, place, whole)
        for process in place.processes():
            process.kill()
        tried[name] = lost
        kept.write_text(json.dumps(tried, indent=1))
        end = "held" if not lost else lost if lost == "missed" else f"LOST: {lost}"
        print(f"{name}: {end} ({time.monotonic() - begun:.0f} s)", flush=True)
    return tried


def table(tried: Mapping[str, str]) -> tuple[str, int]:
    """Tried, held, missed and lost by kind; and how many were lost."""
    rows: dict[str, Counter[str]] = {}
    for name, lost in tried.items():
        words = name.split(": ", 1)[1].rsplit(" ", 1)[0]
        kind = " ".join(words.split()[:2]) if words.startswith("kill") else words
        end = "held" if not lost else "missed" if lost == "missed" else "lost"
        rows.setdefault(kind, Counter())[end] += 1
    rows["in all"] = sum(rows.values(), Counter())
    lines = [f"{'kind':30}{'tried':>7}{'held':>7}{'missed':>8}{'lost':>6}"]
    for kind, row in rows.items():
        line = f"{kind:30}{row.total():7}{row['held']:7}{row['missed']:8}{row['lost']:6}"
        lines.append(line)
    return "\n".join(lines), rows["in all"]["lost"]


def main(given: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        trials = drawn(given.trials, given.seed, given.backend or ["hf"])
        text, lost = table(run(trials, folder.absolute(), given.lock))
        print(text)
        return int(lost > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lock", type=Path)
    sys.exit(main(parser.parse_args()))

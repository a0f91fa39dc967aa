"""Is anything lost when a run is killed, or finds no room? Trials drawn from a seed, on a tiny run.

    python bench/campaign.py [--trials 20] [--seed 1] [--backend hf ...] [--folder FOLDER]

A trial starts a run, does one thing to it (a kill: who × phase × signal; or a machine that refuses
something), waits for its end, goes on with `run --resume latest` where it did not come to a good
one, and compares with an undisturbed run. *Held*: no traceback and an exit code that is documented;
no process, file in shared memory or temporary folder left; every verdict and every figure as
undisturbed. *Missed*: a kill whose moment did not come. Prints tried, held, missed and lost by
kind, and every loss; exits 1 when there is one.

With --folder what was tried is kept in it, and a later call goes on after it. `--lock FILE` holds
that file's lock during trials, and gives it up every two minutes. `--part 2/8` tries every eighth
from the second: for several at once, each with a folder and, so that none takes another's files
for its own, a /dev/shm of its own (unshare --mount).
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

#: Who is there in a phase, by what the run has written: others could not be killed. The engines'
#: own processes are there with a worker's.
_ALL = ("parent", "zygote", "worker")
PHASES: Mapping[str, Sequence[str]] = {
    "plan": ("parent",),
    "import": ("parent", "zygote"),
    "load": _ALL,
    "probe": _ALL,
    "cell": _ALL,
    "collect": _ALL,
    "judge": ("parent",),
    "page": ("parent",),
}
#: The engines' own processes, by words of their titles. Transformers runs in the worker itself.
INNER: Mapping[str, Mapping[str, str]] = {
    "vllm-pp2": {"stage": "Worker_PP"},
    "vllm-async": {"engine core": "EngineCore"},
    "vllm-serve": {"engine core": "EngineCore"},
}
#: Whose a phase is: the reference's, which is run first, or a column's.
_SHARED_PHASES = ("load", "cell", "collect")
REFERENCE, COLUMN = "reference", "column"

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGSEGV", "SIGABRT")
REFUSED = (
    "no room for a file",
    "a full disk",
    "no room in shared memory",
    "no room in temporary files",
    "little memory",
    "ASCII locale",
    "no HOME",
    "reports cannot be written",
    "reports on a read-only disk",
    "a cache on a read-only disk",
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
    """`kind` is "kill" or one of `REFUSED`. `share` says how far into the phase it comes, or how
    much is refused; the rest is a kill's.
    """

    number: int
    kind: str
    backend: str
    share: float = 0.0
    who: str = ""
    of: str = ""
    phase: str = ""
    signal: str = ""

    @property
    def words(self) -> str:
        parts = (self.kind, self.who, self.of, self.phase, self.signal, self.backend)
        return " ".join(filter(None, parts))


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
            found.append(Trial(number, draw.choice(REFUSED), backend, draw.uniform(0, 1)))
            continue
        phase = draw.choice(list(PHASES))
        inner = tuple(INNER.get(backend, ())) if phase in _SHARED_PHASES else ()
        who = draw.choice((*PHASES[phase], *inner))
        of = draw.choice((REFERENCE, COLUMN)) if phase in _SHARED_PHASES else ""
        number_of = draw.choice(SIGNALS)
        share = draw.uniform(0, 1)
        of = COLUMN if who in inner else of
        found.append(Trial(number, "kill", backend, share, who, of, phase, number_of))
    return found


def figures(reports: Path) -> Figures:
    """All that a run says of its cells, but for how long they took and what the run is called."""
    document = json.loads((reports / "latest" / "results.json").read_text())
    kept = ("verdict", "diagnosis", "observations", "relations", "gain", "worst_site")
    return {cell["id"]: {key: cell.get(key) for key in kept} for cell in document["cells"]}


def disturbed(trial: Trial, place: Place, whole: Whole) -> str:
    """What was lost, "" for nothing, "missed" where the moment of a kill did not come."""
    shared = set(SHARED.iterdir())
    code, happened = _killed(trial, place, whole) if trial.who else _refused(trial, place)
    if happened and happened != "missed":
        return f"{happened}: {place.output()[-600:]}"
    place.environment.clear()
    if code != 0:
        resumed = (place.reports / "latest" / "plan.json").exists()
        again = place.command(trial.backend, *(("--resume", "latest") * resumed))
        if (code := _end(place.start(again))) != 0:
            return f"going on ended with {code}: {place.output()[-600:]}"
    if "Traceback" in place.output():
        return f"a traceback: {place.output()[-900:]}"
    if (seen := figures(place.reports)) != whole.figures:
        other = [key for key, one in whole.figures.items() if seen.get(key) != one]
        return f"other figures in {other}: {place.output()[-600:]}"
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


def _killed(trial: Trial, place: Place, whole: Whole) -> tuple[int | str, str]:
    """Its end, and what is wrong with that."""
    process = place.start(place.command(trial.backend))
    number = signal.Signals[trial.signal]
    hit = False
    while process.poll() is None:
        now = _now(place)
        if now.phase == trial.phase and trial.of in {"", now.of}:
            time.sleep(trial.share * whole.seconds.get(f"{now.of} {now.phase}", 0.0))
            hit = _hit(_who(trial, process.pid, _now(place)), number)
            break
        time.sleep(_LOOK)
    code = _end(process)
    if not hit:
        return code, "missed" if code == 0 else f"undisturbed, it ended with {code}"
    allowed: set[int | str] = {0}
    if trial.who == "parent":
        allowed |= {130} if number in _ASKING else {-number}
        # What asks for its end comes before it can hear of it.
        allowed |= {-number} if trial.phase == "plan" else set()
    return code, "" if code in allowed else f"it ended with {code}"


#: Signals that ask a run to end: it says so, with an exit code of its own.
_ASKING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

#: Seconds between two looks at how far a run is.
_LOOK = 0.005


def _hit(who: Sequence[psutil.Process], number: signal.Signals) -> bool:
    for process in who[:1]:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            return True
    return False


@dataclass(frozen=True)
class Now:
    """Where a run is, by what it has written: the phase, whose, and the worker of that."""

    phase: str
    of: str = ""
    worker: int = 0


def _now(place: Place) -> Now:
    run = place.reports / "latest"
    if not run.exists():
        return Now("plan")
    if not (run / "unfinished").exists():
        return Now("page" if (run / "results.json").exists() else "judge")
    found = [(path, _last(path)) for path in run.glob("groups/*/*/events.jsonl")]
    path, last = max(found, key=lambda one: one[1]["at"], default=(run, _NOTHING))
    if not last["at"]:
        return Now("import")
    of = REFERENCE if path.parent.name.startswith("reference") else COLUMN
    phase = {"loading": "load", "closing": "collect", "closed": "collect"}.get(
        last["event"], "cell"
    )
    if last["event"] == "started" and last["case"].startswith("probe"):
        phase = "probe"
    return Now(phase, of, last["pid"])


_NOTHING: Mapping[str, Any] = {"at": 0.0, "event": "", "pid": 0}


def _last(events: Path) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        found: Mapping[str, Any] = json.loads(events.read_text().splitlines()[-1])
        return found
    return _NOTHING


def _who(trial: Trial, parent: int, now: Now) -> list[psutil.Process]:
    """The processes of that name: the one that began last comes first."""
    with contextlib.suppress(psutil.Error):
        if trial.who == "parent":
            return [psutil.Process(parent)]
        if trial.who == "zygote" and not now.worker:
            zygotes = psutil.Process(parent).children()
            return sorted(filter(_is_zygote, zygotes), key=lambda one: -one.create_time())
        worker = psutil.Process(now.worker)
        if trial.who in {"zygote", "worker"}:
            return [worker if trial.who == "worker" else worker.parent() or worker]
        title = INNER[trial.backend][trial.who]
        found = [one for one in worker.children(recursive=True) if title in _title(one)]
        return sorted(found, key=lambda one: -one.create_time())
    return []


def _is_zygote(process: psutil.Process) -> bool:
    return "conformance.worker.zygote" in _title(process)


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


# --- refusals ----------------------------------------------------------------------------------


def _refused(trial: Trial, place: Place) -> tuple[int | str, str]:
    """Its end, and what is wrong with that."""
    command, more = _refusing(trial, place)
    runs = 2 if trial.kind == "two runs on one cache" else 1
    codes = [_end(one) for one in [place.start(command, **more) for _ in range(runs)]]
    if place.reports.is_file():
        place.reports.unlink()
    bad = [code for code in codes if code not in _ALLOWED.get(trial.kind, {0, 1, 2, 3})]
    return max(codes, key=bool), f"it ended with {bad[0]}" if bad else ""


def _refusing(trial: Trial, place: Place) -> tuple[list[str], dict[str, Any]]:
    """The command, and what its process is started with."""
    command = place.command(trial.backend)
    place.environment.update(_VARIABLES.get(trial.kind, {}))
    match trial.kind:
        case "no room for a file":
            most = int(10 ** (2 + 4 * trial.share))
            return command, {"preexec_fn": _limited(resource.RLIMIT_FSIZE, most)}
        case "little memory":
            most = int(2 ** (29 + 3 * trial.share))
            return command, {"preexec_fn": _limited(resource.RLIMIT_AS, most)}
        case "reports cannot be written":
            place.reports.write_text("")
        case "umask 077":
            return command, {"umask": 0o077}
        case "the clock jumps":
            place.environment["LD_PRELOAD"] = str(_jumping_clock(place.folder))
    folder, mount = _MOUNTS.get(trial.kind, ("", ""))
    if not mount:
        return command, {}
    at = place.folder / folder
    at.mkdir(exist_ok=True)
    words = mount.format(at=at, size=int(2 ** (4 + 8 * trial.share)))
    # Nobody else sees it.
    shell = f'mount {words} {at} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", shell, "sh", *command], {}


#: What is mounted where, in a trial's folder.
_MOUNTS: Mapping[str, tuple[str, str]] = {
    "a full disk": ("reports", "-t tmpfs -o size={size}k tmpfs"),
    "reports on a read-only disk": ("reports", "-t tmpfs -o ro tmpfs"),
    "a cache on a read-only disk": ("cache", "-o bind,ro {at}"),
    "no room in temporary files": ("tmp", "-t tmpfs -o size=64k tmpfs"),
    "no room in shared memory": (str(SHARED), "-t tmpfs -o size=64k tmpfs"),
}

#: How it may end where that is not any documented end.
_ALLOWED: Mapping[str, set[int]] = {
    "reports cannot be written": {2},
    "reports on a read-only disk": {2},
    "two runs on one cache": {0},
    "umask 077": {0},
    "the clock jumps": {0},
    "ASCII locale": {0},
    "no HOME": {0},
}

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


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: what it says of its cells, and how long its phases last."""

    figures: Figures
    seconds: Mapping[str, float]
    checkpoints: Path


def _whole(folder: Path, backend: str) -> Whole:
    place = Place(folder / f"whole-{backend}", f"whole-{os.getpid()}")
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
        now = _now(place)
        name = f"{now.of} {now.phase}"
        if name != before:
            seconds.setdefault(before, time.monotonic() - since)
            before, since = name, time.monotonic()
        time.sleep(_LOOK)
    seconds.setdefault(before, time.monotonic() - since)
    if process.returncode != 0:
        words = place.output()[-2000:]
        raise SystemExit(f"undisturbed, it ended with {process.returncode}:\n{words}")
    return seconds


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
        whole = _whole(folder, trial.backend)
        place = _place(folder / "trial", f"{os.getpid()}-{trial.number}", whole.checkpoints)
        lost = disturbed(trial, place, whole)
        for process in place.processes():
            process.kill()
        tried[name] = lost
        kept.write_text(json.dumps(tried, indent=1))
        end = "held" if not lost else lost if lost == "missed" else f"LOST: {lost}"
        print(f"{name}: {end} ({time.monotonic() - begun:.0f} s)", flush=True)
    return tried


def table(trials: Sequence[Trial], tried: Mapping[str, str]) -> tuple[str, int]:
    """Tried, held, missed and lost by kind, and of kills by phase and signal as well; and how many
    were lost.
    """
    kinds: dict[str, Counter[str]] = {}
    for trial in trials:
        lost = tried.get(f"{trial.number}: {trial.words}")
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


def main(given: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        trials = drawn(given.trials, given.seed, given.backend or ["hf"])
        part, parts = map(int, given.part.split("/"))
        trials = trials[part - 1 :: parts]
        text, lost = table(trials, run(trials, folder.absolute(), given.lock))
        print(text)
        return int(lost > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--part", default="1/1")
    sys.exit(main(parser.parse_args()))

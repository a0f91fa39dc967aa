"""What a trial does to a run: a kill in one of its phases, or a machine that refuses something."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.trials import COLUMN, ENDS, INNER, REFERENCE, SHARED, Place, Trial, Whole, end


def killed(trial: Trial, place: Place, whole: Whole) -> tuple[int | str, str]:
    """Its end, and what is wrong with that."""
    process = place.start(place.command(trial.backend))
    number = signal.Signals[trial.signal]
    hit = False
    while process.poll() is None:
        at = now(place)
        if at.phase == trial.phase and trial.of in {"", at.of}:
            time.sleep(trial.share * whole.seconds.get(f"{at.of} {at.phase}", 0.0))
            hit = _hit(_who(trial, process.pid, now(place)), number)
            break
        time.sleep(LOOK)
    code = end(process)
    if not hit:
        return code, "missed" if code == 0 else f"undisturbed, it ended with {code}"
    allowed: set[int | str] = {0, *ENDS.get(trial.who, ())}
    if trial.who == "parent":
        allowed |= {130} if number in _ASKING else {-number}
        # What asks for its end comes before it can hear of it.
        allowed |= {-number} if trial.phase == "plan" else set()
    return code, "" if code in allowed else f"it ended with {code}"


#: Signals that ask a run to end: it says so, with an exit code of its own.
_ASKING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

#: Seconds between two looks at how far a run is.
LOOK = 0.005


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


def now(place: Place) -> Now:
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
    # The reference's is a case of its own, a column's comes when its engine is there.
    case = last["case"] if last["event"] == "started" else ""
    if last["event"] == "probing" or case.startswith("probe"):
        phase = "probe"
    return Now(phase, of, last["pid"])


_NOTHING: Mapping[str, Any] = {"at": 0.0, "event": "", "pid": 0}


def _last(events: Path) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        found: Mapping[str, Any] = json.loads(events.read_text().splitlines()[-1])
        return found
    return _NOTHING


def _who(trial: Trial, parent: int, at: Now) -> list[psutil.Process]:
    """The processes of that name: the one that began last comes first."""
    with contextlib.suppress(psutil.Error):
        if trial.who == "parent":
            return [psutil.Process(parent)]
        if trial.who == "zygote" and not at.worker:
            zygotes = psutil.Process(parent).children(recursive=True)
            return sorted(filter(_is_zygote, zygotes), key=lambda one: -one.create_time())
        if trial.who in {"zygote", "worker"}:
            worker = psutil.Process(at.worker)
            return [worker if trial.who == "worker" else worker.parent() or worker]
        title = INNER[trial.backend][trial.who]
        everyone = psutil.Process(parent).children(recursive=True)
        found = [one for one in everyone if title in _title(one)]
        return sorted(found, key=lambda one: -one.create_time())
    return []


def _is_zygote(process: psutil.Process) -> bool:
    return "conformance.worker.zygote" in _title(process)


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


# --- refusals ----------------------------------------------------------------------------------


def refused(trial: Trial, place: Place) -> tuple[int | str, str]:
    """Its end, and what is wrong with that."""
    command, more = _refusing(trial, place)
    runs = 2 if trial.kind == "two runs on one cache" else 1
    codes = [end(one) for one in [place.start(command, **more) for _ in range(runs)]]
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
            most = int(2 ** (31 + 4 * trial.share))
            return command, {"preexec_fn": _limited(resource.RLIMIT_AS, most)}
        case "reports cannot be written":
            place.reports.write_text("")
        case "umask 077":
            return command, {"umask": 0o077}
        case "the clock jumps":
            place.environment["LD_PRELOAD"] = str(_jumping_clock(place.folder))
        case "a full cache":
            return _with_little_left(place.folder / "cache", trial.share, command), {}
    folder, mount = _MOUNTS.get(trial.kind, ("", ""))
    if not mount:
        return command, {}
    at = place.folder / folder
    at.mkdir(exist_ok=True)
    words = mount.format(at=at, size=int(2 ** (4 + 8 * trial.share)))
    return _apart(f"mount {words} {at}", command), {}


def _apart(first: str, command: Sequence[str]) -> list[str]:
    """The command after what is done to its disks, which nobody else sees."""
    return ["unshare", "--mount", "sh", "-c", f'{first} && exec "$@"', "sh", *command]


def _with_little_left(folder: Path, share: float, command: Sequence[str]) -> list[str]:
    """The command with a folder, as it is, on a disk of its own that has 16 KiB to 4 MiB left."""
    taken = sum(_on_disk(path) for path in (folder, *folder.rglob("*")))
    size = taken // 1024 + int(2 ** (4 + 8 * share))
    disk = folder.with_name("disk")
    return _apart(
        f"mkdir {disk} && mount -t tmpfs -o size={size}k tmpfs {disk} && cp -a {folder}/. {disk} "
        f"&& mount --move {disk} {folder}",
        command,
    )


def _on_disk(path: Path) -> int:
    """Bytes: whole pages, and one for its name."""
    size = 0 if path.is_dir() else path.lstat().st_size
    return (-(-size // _PAGE) + 1) * _PAGE


#: Bytes that a disk in memory gives out at a time.
_PAGE = 4096


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

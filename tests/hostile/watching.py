"""What an input may not do: write outside, import what it names, start anything, take long or much.

An audit hook, which Python cannot remove, and so one that does nothing but while `watched`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EROFS
from pathlib import Path
from typing import Any

from tests.hostile.damage import CANARY

#: Seconds of processor time, and MiB more than ever before.
SECONDS, MIB = 5.0, 500.0

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_CHANGES = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "shutil.rmtree": (0,),
}
#: Where among an event's arguments the folder stands that its paths are below, if any.
_BELOW = {"os.mkdir": (2,), "os.remove": (1,), "os.rmdir": (1,), "os.rename": (2, 3)}
_STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn"}


class Started(BaseException):
    """Something would have been started: the input was taken, and the plan is as far as it goes."""


@dataclass
class Watch:
    """`bad` says what an input did that none may do."""

    inside: Path
    bad: list[str] = field(default_factory=list)
    started: bool = False

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = given
            writes = bool(set(mode or "") & set("wxa+")) or bool((flags or 0) & _WRITES)
            if writes and isinstance(path, str | bytes | Path):
                self._changed(event, path)
        elif event in _CHANGES:
            for index in _CHANGES[event]:
                below = given[_BELOW[event][index]] if event in _BELOW else -1
                self._changed(event, given[index], below)
        elif event in _STARTS:
            self.started = True
            raise Started(event)
        elif event == "import" and CANARY in str(given[0]):
            self.bad.append(f"imported {given[0]}")
        elif event == "socket.connect":
            self.bad.append(f"connected to {given[1:]}")
            raise OSError(EROFS, "not from here")

    def _changed(self, event: str, path: Any, below: int = -1) -> None:
        place = os.fsdecode(path) if isinstance(path, bytes) else path
        if below >= 0:  # a whole folder is removed so
            place = Path(f"/proc/self/fd/{below}", place)
        place = os.path.realpath(place)
        if place == os.devnull or place.endswith(".pyc") or "__pycache__" in place:
            return
        if not Path(place).is_relative_to(self.inside):
            self.bad.append(f"{event} outside: {place[:200]}")
            raise OSError(EROFS, os.strerror(EROFS), place)


_now: list[Watch] = []
_hooked: list[bool] = []


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _now:
        watch = _now.pop()  # what it does itself is not watched
        try:
            watch.hear(event, given)
        finally:
            _now.append(watch)


@contextmanager
def watched(inside: Path) -> Iterator[Watch]:
    """Notes what happens; at the end also what took too long or too much."""
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    watch = Watch(Path(os.path.realpath(inside)))
    begun, now = time.process_time(), _resident(peak=False)
    _forget_peak()
    _now.append(watch)
    try:
        yield watch
    finally:
        _now.clear()
        if (took := time.process_time() - begun) > SECONDS:
            watch.bad.append(f"took {took:.1f} s")
        if (more := _resident(peak=True) - now) > MIB:
            watch.bad.append(f"took {more:.0f} MiB")


def _resident(*, peak: bool) -> float:
    """MiB that this process has in memory, or had at most since that was last forgotten."""
    name = "VmHWM" if peak else "VmRSS"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

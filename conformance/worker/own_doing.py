"""What a block does to the process that it runs in: its end, or a change of what all cells share.

A block is ordinary Python. Where it ends its process, that is the block's own doing and not the
engine's, and the cell says so with the block's line. Where it leaves the process otherwise than it
found it, the cells after it go to a fresh one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Signals with which a process ends or stops itself.
_ENDING = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGABRT, signal.SIGINT})

#: Modules and classes of torch whose functions a block could replace.
_FUNCTIONS = ("torch", "torch.nn.functional", "torch.linalg")

#: What was done, in words, and the calls that led to it as a traceback has them.
Tell = Callable[[str, str], None]


def watch_ends(tell: Tell) -> None:
    """From now on `tell` hears before this process ends or stops itself through `os`."""
    me, leave, kill = os.getpid(), os._exit, os.kill

    def _exit(status: int) -> None:
        if os.getpid() == me:
            tell(f"it ended its process: os._exit({status})", _calls())
        leave(status)

    def _kill(pid: int, number: int, /) -> None:
        if pid == me == os.getpid() and number in _ENDING:
            words = f"it sent {signal.Signals(number).name} to its own process"
            tell(words, _calls())
        kill(pid, number)

    os._exit = _exit  # type: ignore[assignment]
    os.kill = _kill


def _calls() -> str:
    """As a traceback: who called, but for the two calls in here."""
    return "".join(traceback.format_stack()[:-2])


def surroundings() -> Mapping[str, Any]:
    """What of this process the cells share, by what it is called."""
    found: dict[str, Any] = {
        "the working directory": _folder(),
        "the environment's variables": dict(os.environ),
        "the limit of recursion": sys.getrecursionlimit(),
        "the number of threads of Python": threading.active_count(),
        "the number of open descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["the default type"] = torch.get_default_dtype()
        found["the number of threads of torch"] = torch.get_num_threads()
        found["whether gradients are kept"] = torch.is_grad_enabled()
        for name in _FUNCTIONS:
            held = vars(sys.modules[name])
            found[f"functions of {name}"] = {
                key: id(value) for key, value in held.items() if callable(value)
            }
    return found


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of what is otherwise. What was not there, as a module that a cell imports, and a
    thread or a descriptor that an engine opens now and then, is none: many are.
    """
    found = []
    for name, value in before.items():
        now = after.get(name)
        if isinstance(value, dict) and isinstance(now, dict) and name.startswith("functions"):
            differs = any(now.get(key, one) != one for key, one in value.items())
        elif name.startswith("the number of threads of Python"):
            differs = now is None or now > value + 8
        elif name.startswith("the number of open"):
            differs = now is None or now < value or now > value + 64
        else:
            differs = now != value
        if differs:
            found.append(name)
    return found

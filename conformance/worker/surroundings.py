"""What the cells of one process share, and whether a block has left it as it was.

A block is ordinary Python and may change anything of its process. Cells after one that did run in
fresh processes; only the random state, which every honest cell moves on too, is put back.
"""

from __future__ import annotations

import operator
import os
import random
import signal
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance.worker import modules

#: Where torch's functions are that a block could replace.
_FUNCTIONS = ("torch", "torch.nn.functional", "torch.linalg")

#: So many more threads and descriptors than before are an engine's own, opened now and then.
_THREADS, _DESCRIPTORS = 8, 64

_OPEN, _STANDARD = "/proc/self/fd", {0, 1, 2}

#: Of a file in /proc, so many bytes hold all that is wanted.
_BYTES = 1 << 14

#: Plain numbers: their names would be looked up for each of them in every step.
_SIGNALS = tuple(map(int, signal.valid_signals()))

#: The names of what `changes` compares in ways of their own.
_STARTED, _CHILDREN = "its threads", "its child processes"
_OPENED, DESCRIPTORS = "the number of its descriptors", "descriptors of its files"
_REPLACED = "functions of "
_OF_MODULES = {modules.HOOKS, modules.MODULES, modules.WEIGHTS, modules.BUFFERS}


def surroundings(*, in_a_step: bool = False, model: Any = None) -> Mapping[str, Any]:
    """What of this process the cells share, by what it is called: of an engine's `model` as well,
    where it has one. What an engine changes for the length of a step, and what takes long to find
    out, is left out in one.
    """
    opened = os.listdir(_OPEN)  # noqa: PTH208 - names alone, in every step of an engine
    state: dict[str, Any] = {
        "the working directory": _folder(),
        "the environment's variables": os.environ._data.copy(),  # type: ignore[attr-defined] # noqa: SLF001 - as bytes
        "the limit of recursion": sys.getrecursionlimit(),
        "the mask of new files": _mask(),
        "the handlers of signals": list(map(signal.getsignal, _SIGNALS)),
        _STARTED: threading.active_count(),
        _OPENED: len(opened),
        # Of those that are open still it is found out after the cell which file they are of.
        DESCRIPTORS: dict.fromkeys(map(int, opened)) if in_a_step else _files(opened),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        state |= _of_torch(torch)
    if not in_a_step:
        state[_CHILDREN] = _children()
    if torch is not None and not in_a_step:
        state["whether gradients are kept"] = torch.is_grad_enabled()
        state["whether types are cast by themselves"] = torch.is_autocast_enabled("cpu")
    if model is not None and not in_a_step:
        state |= modules.state(model)
    return state


def _of_torch(torch: Any) -> dict[str, Any]:
    state: dict[str, Any] = {
        "the default type": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "the number of threads of torch": torch.get_num_threads(),
        "whether algorithms must be deterministic": torch.are_deterministic_algorithms_enabled(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
    }
    owners = {name: sys.modules[name] for name in _FUNCTIONS}
    owners |= {"torch.Tensor": torch.Tensor, "torch.nn.Module": torch.nn.Module}
    return state | {_REPLACED + name: dict(vars(owner)) for name, owner in owners.items()}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of what is otherwise and was looked at both times. What was not there, as a module
    that a cell imports, and a thread or a descriptor that an engine opens now and then, is none:
    many are.
    """
    common = [name for name in before if name in after]
    return [name for name in common if _differs(name, before[name], after[name])]


def _differs(name: str, value: Any, now: Any) -> bool:
    if name.startswith(_REPLACED):
        if len(value) == len(now) and all(map(operator.is_, value.values(), now.values())):
            return False
        return any(
            now.get(key) is not function for key, function in value.items() if callable(function)
        )
    if name in _OF_MODULES:
        return modules.differs(name, value, now)
    if name == _CHILDREN:
        return bool(now - value)  # an engine's own may end
    if name == DESCRIPTORS:
        closed = {key for key, file in value.items() if now.get(key, ()) not in (None, file)}
        return (
            bool(closed & _STANDARD) or len(closed) > len(value) / 2
        )  # an engine closes one or two
    room = {_STARTED: _THREADS, _OPENED: _DESCRIPTORS}.get(name)
    return bool(now != value if room is None else now > value + room)


def keep_random_state() -> Callable[[], None]:
    """What puts the random state of this process back to what it is now."""
    python = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    of_torch = torch.get_rng_state() if torch is not None else None
    cuda = torch is not None and torch.cuda.is_initialized()
    of_cuda = torch.cuda.get_rng_state_all() if torch is not None and cuda else None

    def put_back() -> None:
        random.setstate(python)
        if numpy is not None and of_numpy is not None:
            numpy.random.set_state(of_numpy)
        if torch is not None and of_torch is not None:
            torch.set_rng_state(of_torch)
        if torch is not None and of_cuda is not None:
            torch.cuda.set_rng_state_all(of_cuda)

    return put_back


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _mask() -> bytes:
    """As the kernel says it: a process can ask for its own only by setting another."""
    text = _read_proc("/proc/self/status")
    start = text.find(b"Umask:")
    return text[start : text.find(b"\n", start)]


def _children() -> set[bytes]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()  # as a rule, and the files of all threads take long
    children: set[bytes] = set()
    for thread in Path("/proc/self/task").iterdir():
        children.update(_read_proc(f"{thread}/children").split())
    return children


def _read_proc(path: str) -> bytes:
    """A file of /proc: many are read after every cell. Nothing where it is gone."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, _BYTES)
        finally:
            os.close(file)
    return b""


def _files(opened: list[str]) -> dict[int, tuple[int, int]]:
    """Which file each descriptor is of. Not of connections, which an engine gives up where the
    other side has ended.
    """
    files: dict[int, tuple[int, int]] = {}
    for descriptor in map(int, opened):
        with suppress(OSError):  # the list's own
            of = os.fstat(descriptor)
            if stat.S_ISREG(of.st_mode) or stat.S_ISCHR(of.st_mode):
                files[descriptor] = (of.st_dev, of.st_ino)
    return files

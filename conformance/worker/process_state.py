"""The worker's process: its session, limits and log, and protection from what its cases change."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from conformance.errors import described
from conformance.runner.processes import sessions, temporary
from conformance.spec.records import Owner
from conformance.worker import frames

#: Bytes that every engine may allocate, since engines request more than they use.
_ROOM = 8 << 30

_RESTORE: dict[int, Callable[[], None]] = {}


class EndedByBlockError(RuntimeError):
    """A block tried to end the program, as `sys.exit` and Ctrl-C do."""


def lead_session() -> None:
    """Lead a session, so that ending this worker ends everything that its engine started."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    sessions.die_with_parent()
    sessions.adopt_orphans()
    temporary.name_shared()
    # Crashes are expected now and then; do not write an engine's memory to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    limit_memory()


def limit_memory() -> None:
    """Make endless allocation raise an error before the kernel runs out of memory and kills some
    process. Each process may have most of the memory. No limit is set with a GPU, whose driver
    reserves memory differently.
    """
    if Path("/dev/nvidiactl").exists():
        return
    memory = psutil.virtual_memory()
    most = max(memory.available * 3 // 4, memory.total // 2, _ROOM)
    allowed, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if allowed == resource.RLIM_INFINITY or allowed > most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def redirect(log: Path) -> None:
    """Redirect all output of this process and its children to the log."""
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)
    faulthandler.enable(file=2)
    os.environ["PYTHONFAULTHANDLER"] = "1"  # for processes not forked from this one
    # The runner requests all threads' stacks before it ends a hanging worker.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def log_file() -> tuple[int, int]:
    """Return the device and inode of this process's standard error."""
    with suppress(OSError):
        status = os.fstat(2)
        return status.st_dev, status.st_ino
    return 0, 0


def restore() -> None:
    """Restore the state of the first call in this process: random states, working directory,
    environment and torch's defaults.
    """
    pid = os.getpid()
    if pid not in _RESTORE:
        _RESTORE[pid] = _keep()
    _RESTORE[pid]()


def _keep() -> Callable[[], None]:
    """Return a function that restores the present state."""
    state, folder, environment = random.getstate(), Path.cwd(), dict(os.environ)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    if torch is not None:
        torch_state, dtype = torch.get_rng_state(), torch.get_default_dtype()
        cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def put_back() -> None:
        random.setstate(state)
        os.chdir(folder)
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
        if torch is None:
            return
        torch.set_rng_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)

    return put_back


def exit_if_forked(pid: int) -> None:
    """End this process unless it is the process `pid`: then a block forked it, and it must not run
    what follows the block.
    """
    if os.getpid() != pid:
        os._exit(0)


@contextmanager
def raising_instead_of_exiting() -> Iterator[None]:
    """Raise EndedByBlockError if a block raises SystemExit or KeyboardInterrupt, which would end an
    engine's process.
    """
    pid = os.getpid()
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if os.getpid() == pid and not raised_by_a_block(error, frames.roots()):
            raise
        exit_if_forked(pid)
        # The error is attributed by the last line of the traceback, which must be the block's.
        raise EndedByBlockError(described(error)).with_traceback(error.__traceback__) from None
    finally:
        exit_if_forked(pid)


def raised_by_a_block(error: BaseException, roots: frames.Roots) -> bool:
    """Return whether the innermost frame with an owner is a scenario's."""
    found = frames.frames("".join(traceback.format_exception(error)), roots)
    return bool(found) and found[-1].owner is Owner.SCENARIO

"""Protection of a process from what its cases change, so that the next case is unaffected."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.errors import described
from conformance.records import Owner
from conformance.worker import frames


class EndedByBlockError(RuntimeError):
    """A block tried to end the program, as `sys.exit` and Ctrl-C do."""


_RESTORE: dict[int, Callable[[], None]] = {}


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

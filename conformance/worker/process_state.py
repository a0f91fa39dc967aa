"""What a case may change in the process that it runs in, without an effect on the next case."""

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
    """A block asked for the end of the program, as `sys.exit` and Ctrl-C do."""


_RESTORE: dict[int, Callable[[], None]] = {}


def restore() -> None:
    """Restore what the first call in this process has found: the random state, the working
    directory, the environment and torch's defaults.
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
    """End this process unless it is the process `pid`: a block has forked it, and what follows the
    block is not its work.
    """
    if os.getpid() != pid:
        os._exit(0)


@contextmanager
def raising_instead_of_exiting() -> Iterator[None]:
    """Raise EndedByBlockError where a block raises SystemExit or KeyboardInterrupt, which would
    end the process of an engine.
    """
    pid = os.getpid()
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if os.getpid() == pid and not raised_by_a_block(error, frames.roots()):
            raise
        exit_if_forked(pid)
        # With the block's own line last in the traceback, by which the error is attributed.
        raise EndedByBlockError(described(error)).with_traceback(error.__traceback__) from None
    finally:
        exit_if_forked(pid)


def raised_by_a_block(error: BaseException, roots: frames.Roots) -> bool:
    """Return whether the innermost frame that belongs to somebody is a scenario's."""
    found = frames.frames("".join(traceback.format_exception(error)), roots)
    return bool(found) and found[-1].owner is Owner.SCENARIO

"""A process that Ray may end, and one that waits for it.

Where its node or its head is gone, Ray ends the process that has joined the cluster at once, with 1
and no word of ours: as if a cell had failed, and with all that was to be cleared away still there.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress

from conformance.errors import ConformanceError, ExitCode
from conformance.processes import sessions, temporary

#: Handed on to the process that works, whose end is then waited for.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def apart() -> int | None:
    """Go on in a process of its own: there it returns None, and here what that one has ended with.

    Raises ConformanceError, when nothing of it is left, where that did not come to an end of its
    own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    said, says = os.pipe()
    # Waited for rather than handled: a handler of Python's runs late for a signal that comes just
    # before a wait begins, and one that comes before it is installed would end the wrong process.
    heard = {number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard | {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        sessions.die_with_parent()
        # A terminal's Ctrl-C reaches it once: by the one that waits.
        os.setpgid(0, 0)
        os.close(said)
        atexit.register(os.write, says, b".")  # which Ray's way out of a process leaves out
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    os.close(says)
    os.set_blocking(said, False)  # others may still have the end that was written to
    code = _end(pid, heard)
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with suppress(BlockingIOError):
        if os.read(said, 1):
            return code
    # Sweeps what a run that was killed has left, processes and folders.
    with temporary.folder():
        pass
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
    raise ConformanceError(
        f"the cluster is lost: Ray ended the process that had joined it ({how})",
        remedy="go on, there or elsewhere: conformance run --resume latest",
        code=ExitCode.HARNESS,
    )


def _end(pid: int, heard: set[signal.Signals]) -> int:
    """What the process has ended with; what is heard meanwhile is handed on to it."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        number = signal.sigwait(heard | {signal.SIGCHLD})
        if number in heard:
            os.kill(pid, number)  # not waited for yet, so the number is still its own

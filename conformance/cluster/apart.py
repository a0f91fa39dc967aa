"""A process that Ray may end, and its parent, which cleans up.

If its node or head is lost, Ray exits the process that joined the cluster, with status 1 and no
message. That would look like a failed cell, and leave everything to be cleaned up.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress

from conformance.errors import ConformanceError, ExitCode
from conformance.processes import sessions, temporary

#: Signals passed on to the working process, whose end is then awaited.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def apart() -> int | None:
    """Continue in a forked process. Return None there, and that process's exit status here.

    Raises ConformanceError, after cleaning up, if the process did not exit regularly.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    said, says = os.pipe()
    # Use sigwait, not handlers: a Python handler runs late for a signal just before a wait, and a
    # signal before a handler is installed would end the wrong process.
    heard = {number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard | {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        sessions.die_with_parent()
        # Its own process group, so that Ctrl-C reaches it once, from its parent.
        os.setpgid(0, 0)
        os.close(said)
        atexit.register(os.write, says, b".")  # not run when Ray exits the process
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    os.close(says)
    os.set_blocking(said, False)  # other processes may still hold the write end
    code = _end(pid, heard)
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with suppress(BlockingIOError):
        if os.read(said, 1):
            return code
    # Sweeps the processes and folders of killed runs.
    with temporary.folder():
        pass
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
    raise ConformanceError(
        f"the cluster is lost: Ray ended the process that had joined it ({how})",
        remedy="go on, there or elsewhere: conformance run --resume latest",
        code=ExitCode.HARNESS,
    )


def _end(pid: int, heard: set[signal.Signals]) -> int:
    """Wait for the process and return its exit status; pass signals on to it."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        number = signal.sigwait(heard | {signal.SIGCHLD})
        if number in heard:
            os.kill(pid, number)  # not reaped yet, so the number is still its own

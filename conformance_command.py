"""The command `conformance`: hears signals from its first line on, before it imports anything."""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: What asks a command to end: Ctrl-C, a `timeout` or a scheduler, a terminal that is closed.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: `ExitCode.INTERRUPTED`, before anything of ours is imported.
_INTERRUPTED = 130


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Nothing has begun while modules are imported, and an exception could get lost in one."""
    os._exit(_INTERRUPTED)


#: Seconds after which an interruption that got lost is repeated.
_AGAIN = 0.05


def _repeating(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """An interruption that comes while a library's own code calls back into Python, or while an
    object is deleted, is dropped with a message: nobody could catch it there. It comes again.
    """

    def unraisable(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)
            return
        again = threading.Timer(_AGAIN, _thread.interrupt_main)
        again.daemon = True
        again.start()

    return unraisable


def main() -> None:
    """Import the verbs and run one."""
    # What nohup has ignored stays ignored.
    for number in _ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _leave)
    from conformance import cli

    for number in _ENDING:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.default_int_handler)
    sys.unraisablehook = _repeating(sys.unraisablehook)
    cli.main()

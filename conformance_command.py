"""The command `conformance`: hears signals from its first line on, before it imports anything."""

import os
import signal
import sys
import threading
import time
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


#: Seconds after which an interruption is repeated that got lost, or came at a bad moment.
_AGAIN = 0.05

#: Seconds that an import may put an interruption off.
_PATIENCE = 5.0


def _again() -> None:
    """As a signal, which wakes what waits."""
    main_thread = threading.main_thread().ident or 0
    again = threading.Timer(_AGAIN, signal.pthread_kill, (main_thread, signal.SIGINT))
    again.daemon = True
    again.start()


class _Interrupt:
    """Ctrl-C's handler: it raises KeyboardInterrupt, but not inside of an import. A module in C++
    that is initialised then ends the process by an abort, and one in Python stays half made.
    `raised` says that it has been raised: a library may make an error of its own of it.
    """

    def __init__(self) -> None:
        self.put_off = 0.0
        self.raised = False

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if _imports(frame):
            self.put_off = self.put_off or now
            if now - self.put_off < _PATIENCE:
                _again()
                return
        self.put_off = 0.0
        self.raised = True
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Is an import on the stack?"""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _repeating(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """An interruption that comes while a library's own code calls back into Python, or while an
    object is deleted, is dropped with a message: nobody could catch it there. It comes again.
    """

    def unraisable(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            _again()
        else:
            hook(dropped)

    return unraisable


def main() -> None:
    """Import the verbs and run one."""
    # What nohup has ignored stays ignored.
    for number in _ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _leave)
    from conformance import cli

    interrupt = _Interrupt()
    for number in _ENDING:
        if signal.getsignal(number) is _leave:
            signal.signal(number, interrupt)
    sys.unraisablehook = _repeating(sys.unraisablehook)
    cli.main()

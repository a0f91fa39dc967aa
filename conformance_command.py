"""The command `conformance`: hears signals from its first line on, before it imports anything."""

import os
import signal
from types import FrameType

#: What asks a command to end: Ctrl-C, a `timeout` or a scheduler, a terminal that is closed.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: `ExitCode.INTERRUPTED`, before anything of ours is imported.
_INTERRUPTED = 130


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Nothing has begun while modules are imported, and an exception could get lost in one."""
    os._exit(_INTERRUPTED)


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
    cli.main()

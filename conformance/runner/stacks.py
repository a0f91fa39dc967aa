"""Where a worker hung, from the stacks that it wrote before it was killed (pure functions)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from conformance.records import Frame, Owner

#: The header of a thread's stack from `faulthandler`, innermost call first.
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*\(most recent call first\):$", re.MULTILINE)
_CALL = re.compile(r'^  File "([^"]+)", line (\d+) in ', re.MULTILINE)
#: A block that waits in Python's own library is itself the one waiting.
_LIBRARY = re.compile(r"/lib/python3\.\d+/(?!site-packages/)|^<frozen ")
#: nnsight's file names for the code of a block.
_BLOCK = re.compile(r"<(?:edit|nnsight)[^>]*>")


def in_the_trace(log: str, scenarios: Sequence[Path]) -> tuple[Frame, ...]:
    """Return the line of the block in which a thread hung, or nothing if every thread was in other
    code, such as waiting for the engine.
    """
    for stack in _THREAD.split(log)[1:]:
        # A blank line ends the stack; the rest is other output.
        calls = _CALL.findall(stack.partition("\n\n")[0])
        own = next(((path, line) for path, line in calls if not _LIBRARY.search(path)), None)
        if own is None:
            continue
        path, line = own
        folder = next(
            (scenario for scenario in scenarios if Path(path).is_relative_to(scenario)), None
        )
        if _BLOCK.fullmatch(path) or folder is not None:
            name = path if folder is None else f"{folder.name}/{Path(path).relative_to(folder)}"
            return (Frame(Owner.SCENARIO, name, int(line)),)
    return ()

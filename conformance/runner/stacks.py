"""Whose code a worker hung in, by the stacks that it wrote before it was killed (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from conformance.records import Frame, Owner

#: As `faulthandler` writes one thread's stack, the innermost call first.
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*\(most recent call first\):$", re.MULTILINE)
_CALL = re.compile(r'^  File "([^"]+)", line (\d+) in ', re.MULTILINE)
#: Where a block waits in Python's own library, it waits itself.
_LIBRARY = re.compile(r"/lib/python3\.\d+/(?!site-packages/)|^<frozen ")
#: How nnsight names the code of a block that it runs.
_BLOCK = re.compile(r"<(?:edit|nnsight)[^>]*>")


def in_the_trace(log: str, scenarios: Sequence[Path]) -> tuple[Frame, ...]:
    """The line of the block that a thread was in; nothing where each was in somebody else's code,
    as one that waits for the engine is.
    """
    for stack in _THREAD.split(log)[1:]:
        # A stack ends where its calls do: what follows is the log's.
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

"""What an engine said when it ended: the cause is often in its log, not in its exception.

An engine of several processes raises "see the stack trace above for the root cause" in the
one that is asked, and writes the cause from another one, each line with a prefix.
"""

from __future__ import annotations

import re
import signal

from conformance.processes import sessions

#: The last line of a traceback, whatever a logger has put before it.
_RAISED = re.compile(
    r"(?:^|.*?[\]:] )"
    r"(?P<kind>(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Failure|Exit)): (?P<words>\S.*)$"
)

#: The exit code of a process that a signal has ended, among those that vLLM lists.
_EXIT_CODE = re.compile(r"Failed core proc\(s\).*?: -(\d+)")

#: The first line of what `faulthandler` writes.
_FATAL = re.compile(r"Fatal Python error: \w.*")

#: How many lines before the cause are shown with it.
_CONTEXT = 12


def points_elsewhere(words: str) -> bool:
    """Whether this message only says where to look."""
    return "root cause" in words.lower()


def says_that_it_ends(words: str) -> bool:
    """Whether an engine answers that it was told to end: vLLM does so while it shuts down."""
    return "shutting down" in words.lower()


def killed_by(words: str) -> signal.Signals | None:
    """Return the signal by which somebody else has ended a process of an engine: vLLM names the
    exit codes of the processes that it has lost while it started.
    """
    for code in _EXIT_CODE.findall(words):
        if int(code) in sessions.FROM_OUTSIDE:
            return signal.Signals(int(code))
    return None


def fatal_error(log: str) -> str:
    """Return the last line with which Python says that a signal of its own ends a process."""
    return next(iter(_FATAL.findall(log)[-1:]), "")


def cause(log: str, words: str) -> tuple[str, str]:
    """The last exception in the log that is not the one with these `words`.

    Returns "Kind: words" and the lines that led to it, both empty when there is none, or when
    these words quote it already.
    """
    lines = log.splitlines()
    for number in range(len(lines) - 1, -1, -1):
        match = _RAISED.match(lines[number])
        if match is None or points_elsewhere(match["words"]) or words.endswith(match["words"]):
            continue
        if match["words"] in words:
            break  # they quote it: there is nothing to add
        kind = match["kind"].rpartition(".")[2]
        context = lines[max(0, number - _CONTEXT) : number + 1]
        return f"{kind}: {match['words']}", "\n".join(context)
    return "", ""

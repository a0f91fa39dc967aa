"""The root cause of an engine's failure, which is often in its log and not in its exception.

An engine of several processes raises "see the stack trace above for the root cause" in the process
that called it. Another process writes the cause, each line with a prefix.
"""

from __future__ import annotations

import re
import signal

from conformance.runner.processes import sessions

#: The last line of a traceback, with any prefix of a logger.
_RAISED = re.compile(
    r"(?:^|.*?[\]:] )"
    r"(?P<kind>(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Failure|Exit)): (?P<words>\S.*)$"
)

#: The exit code of a process ended by a signal, in vLLM's list of the processes that it lost while
#: starting.
_EXIT_CODE = re.compile(r"Failed core proc\(s\).*?: -(\d+)")

#: The first line of the output of `faulthandler`.
_FATAL = re.compile(r"Fatal Python error: \w.*")

#: How many lines before the cause are shown with it.
_CONTEXT = 12


def points_elsewhere(words: str) -> bool:
    """Return whether this message only says where to look."""
    return "root cause" in words.lower()


def says_that_it_ends(words: str) -> bool:
    """Return whether an engine says that it was told to end, as vLLM does while it shuts down."""
    return "shutting down" in words.lower()


def killed_by(words: str) -> signal.Signals | None:
    """Return the signal from outside that ended a process of an engine, or None."""
    numbers = map(int, _EXIT_CODE.findall(words))
    return next((signal.Signals(one) for one in numbers if one in sessions.FROM_OUTSIDE), None)


def fatal_error(log: str) -> str:
    """Return the last line in which Python reports a fatal error, or ""."""
    return next(iter(_FATAL.findall(log)[-1:]), "")


def cause(log: str, words: str) -> tuple[str, str]:
    """Find the last exception in the log that is not the one with the message `words`.

    Return "Kind: message" and the lines before it. Both are empty if there is none, or if `words`
    already quotes it.
    """
    lines = log.splitlines()
    for number in range(len(lines) - 1, -1, -1):
        match = _RAISED.match(lines[number])
        if match is None or points_elsewhere(match["words"]) or words.endswith(match["words"]):
            continue
        if match["words"] in words:
            break  # `words` quotes it: there is nothing to add
        kind = match["kind"].rpartition(".")[2]
        context = lines[max(0, number - _CONTEXT) : number + 1]
        return f"{kind}: {match['words']}", "\n".join(context)
    return "", ""

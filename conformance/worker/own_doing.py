"""What a block does to the processes that it runs in: its end, or a change of what all cells share.

A block is ordinary Python, and runs in the worker or in processes of its engine. Where it ends
one, that is the block's own doing and not the engine's. Each of these processes says so itself,
in the events of its group, before it comes to it: afterwards nobody knows.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.errors import described
from conformance.records import Frame, Owner
from conformance.store.doings import Doing, How, event_of, tell
from conformance.worker import frames
from conformance.worker.surroundings import DESCRIPTORS, changes, keep_random_state, surroundings

#: The events' file and the scenarios' folders, for processes that are not forked from the worker.
EVENTS, SCENARIOS = "CONFORMANCE_EVENTS", "CONFORMANCE_SCENARIOS"

#: Signals with which a process ends or stops itself.
_ENDING = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGABRT, signal.SIGINT})

#: Of the calls that led to an end, so many characters are said: an event is written at once.
_MOST, _FRAMES = 2500, 3


class EndedByBlockError(RuntimeError):
    """A block asked for the end of the program, as `sys.exit` and Ctrl-C do."""


def tell_in(events: Path, scenarios: Sequence[Path]) -> None:
    """Where this process and those of its engine say what blocks do, and where those lie."""
    os.environ[EVENTS] = str(events.absolute())
    os.environ[SCENARIOS] = os.pathsep.join(str(folder.absolute()) for folder in scenarios)


class Watch:
    """What blocks do to this process from now on. A process has one."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.events = Path(os.environ.get(EVENTS) or os.devnull)
        folders = filter(None, os.environ.get(SCENARIOS, "").split(os.pathsep))
        self.roots = frames.roots(*map(Path, folders))
        self._put_back = keep_random_state()
        self._before: Mapping[str, Any] = {}
        self._left: set[str] = set()
        self._model: Any = None
        self._watch_ends()

    def begin(self, model: Any = None) -> None:
        """A cell begins. `model` is the module that this process computes with, if it has one."""
        self._put_back()
        self._left = set()
        self._model = model
        self._before = surroundings(model=model)

    def look(self, *, in_a_step: bool = False) -> None:
        """A block has run: say what it has left otherwise, once."""
        self.leave_if_forked()
        now = surroundings(in_a_step=in_a_step, model=self._model)
        for name in changes(self._before, now):
            self._say_left(name)

    def leave_if_forked(self) -> None:
        """A child that a block has forked ends where the block does."""
        if os.getpid() != self.pid:
            os._exit(0)

    @contextmanager
    def block(self) -> Iterator[None]:
        """While blocks may run: what they raise is an error, and no end of the process."""
        try:
            yield
        except (SystemExit, KeyboardInterrupt) as error:
            self.leave_if_forked()
            text = "".join(traceback.format_exception(error))
            call_frames = frames.frames(text, self.roots)
            if not by_the_trace(call_frames):
                raise  # somebody else's
            words = described(error)
            self._tell(Doing(How.RAISED, words, text, call_frames))
            raise EndedByBlockError(words) from error
        except Exception:
            self.look(in_a_step=True)
            raise

    def _watch_ends(self) -> None:
        """From now on this process says it before it ends, stops itself or closes everything."""
        leave, abort, kill, killpg = os._exit, os.abort, os.kill, os.killpg
        send, close = signal.raise_signal, os.closerange

        def _exit(status: int) -> None:
            self._ends(f"it ended its process: os._exit({status})")
            leave(status)

        def _abort() -> None:
            self._ends("it ended its process: os.abort()")
            abort()

        def _sends(to_itself: bool, number: int) -> None:
            if to_itself and number in _ENDING:
                self._ends(f"it sent {signal.Signals(number).name} to its own process")

        def _kill(pid: int, number: int, /) -> None:
            _sends(pid in {os.getpid(), 0, -os.getpgrp()}, number)
            kill(pid, number)

        def _killpg(group: int, number: int, /) -> None:
            _sends(group in {os.getpgrp(), 0}, number)
            killpg(group, number)

        def _raise(number: int, /) -> None:
            _sends(to_itself=True, number=number)
            send(number)

        def _close(low: int, high: int, /) -> None:
            # Another thread that waits on one of them may end the process at once.
            if self._by_the_trace()[1]:
                self._say_left(DESCRIPTORS)
            close(low, high)

        os._exit, os.abort, os.closerange = _exit, _abort, _close  # type: ignore[assignment]
        os.kill, os.killpg, signal.raise_signal = _kill, _killpg, _raise

    def _ends(self, words: str) -> None:
        calls, call_frames = self._by_the_trace()
        if call_frames:
            self._tell(Doing(How.ENDS, words, calls, call_frames))

    def _by_the_trace(self) -> tuple[str, tuple[Frame, ...]]:
        """The calls that led here, as a traceback has them, and their frames: none where another
        than a block of this process has called.
        """
        if os.getpid() != self.pid:
            return "", ()
        stack = traceback.format_stack()
        calls = "".join(call for call in stack if f'"{__file__}"' not in call)
        call_frames = frames.frames(calls, self.roots)
        return calls, call_frames if by_the_trace(call_frames) else ()

    def _say_left(self, name: str) -> None:
        if name not in self._left:
            self._left.add(name)
            self._tell(Doing(How.LEFT, name))

    def _tell(self, did: Doing) -> None:
        did = replace(did, calls=did.calls[-_MOST:], frames=did.frames[-_FRAMES:])
        with suppress(OSError):
            tell(self.events, "did", **event_of(did))


_WATCHES: dict[int, Watch] = {}


def watch() -> Watch:
    """This process's own, made when it is asked for first."""
    if os.getpid() not in _WATCHES:
        _WATCHES[os.getpid()] = Watch()
    return _WATCHES[os.getpid()]


def by_the_trace(call_frames: Sequence[Frame]) -> bool:
    return bool(call_frames) and call_frames[-1].owner is Owner.SCENARIO

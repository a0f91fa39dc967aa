"""One zygote per launch: started, replaced, given up, ended."""

from __future__ import annotations

import selectors
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.runner import zygotes
from conformance.runner.planned import Launch
from conformance.runner.zygotes import ZygoteProcess

#: A zygote is restarted if it ended after it was ready, or by a signal: either someone killed it or
#: its imports crashed, and only the latter repeats. After this many starts it is given up.
ZYGOTE_STARTS = 3

#: The beginning of the reason if the interpreter lacks what the engine needs, or has it broken.
CANNOT_IMPORT = "the engine cannot be imported"


@dataclass(frozen=True)
class LaunchFailure:
    """Why a launch gets no more workers. `slow`: its imports took too long, as on a busy machine,
    which is not the engine's error.
    """

    words: str
    slow: bool = False


class ZygotePool:
    """The zygotes of a run; `unusable` says why a launch gets no more workers."""

    def __init__(self, logs: Path, *, mark: str, imports: float, places: Mapping[str, str]) -> None:
        self.unusable: dict[Launch, LaunchFailure] = {}
        self._logs = logs
        self._mark = mark
        self._imports = imports
        self._places = places
        self._zygotes: dict[Launch, ZygoteProcess] = {}
        self._starts: dict[Launch, int] = {}

    def start(self, launch: Launch) -> None:
        """Start a zygote for this launch, unless there is one or it is unusable."""
        if launch in self._zygotes or launch in self.unusable:
            return
        self._starts[launch] = self._starts.get(launch, 0) + 1
        number = list(self._starts).index(launch) + 1
        log = self._logs / f"zygote-{number}-{launch.preload or 'plain'}.txt"
        try:
            self._zygotes[launch] = zygotes.start(
                launch, log=log, mark=self._mark, places=self._places
            )
        except OSError as error:
            self.unusable[launch] = LaunchFailure(f"{launch.python} cannot be started: {error}")

    def warm(self, launch: Launch, *, most: int) -> None:
        """Start a zygote in advance if the launch never had one and there are fewer than `most`."""
        if len(self._zygotes) < most and launch not in self._starts:
            self.start(launch)

    def ask(self, launch: Launch, identifier: str, job: Path) -> None:
        self._zygotes[launch].ask(identifier, job)

    def imports(self, launch: Launch) -> bool:
        """Return whether the zygote of this launch has started and is not ready yet."""
        return launch in self._zygotes and not self._zygotes[launch].ready

    def ready(self, launch: Launch) -> bool:
        return launch in self._zygotes and self._zygotes[launch].ready

    def hear(self, seconds: float) -> list[dict[str, Any]]:
        """Return the zygotes' messages about workers; wait at most `seconds`."""
        if not self._zygotes:
            return []
        with selectors.DefaultSelector() as selector:
            for zygote in self._zygotes.values():
                selector.register(zygote.socket, selectors.EVENT_READ, zygote)
            ready = [key.data for key, _ in selector.select(seconds)]
        return [message for zygote in ready for message in zygote.hear()]

    def take_lost(self, deaf: Collection[Launch]) -> dict[Launch, str]:
        """End and forget the zygotes that no longer serve; return the reason for each.

        `deaf` are those that no longer answer. Launches that cannot be retried become `unusable`.
        """
        lost: dict[Launch, str] = {}
        for launch, zygote in list(self._zygotes.items()):
            if slow := zygote.overdue(self._imports):
                zygote.words = f"the imports of {launch.preload} took more than {self._imports:g} s"
            if launch in deaf:
                zygote.words = zygote.words or "its zygote no longer answers"
            if not zygote.words:
                continue
            lost[launch] = zygote.words
            zygote.end()
            del self._zygotes[launch]
            if slow:
                self.unusable[launch] = LaunchFailure(zygote.words, slow=True)
            elif not zygote.ready and not zygote.killed:
                self.unusable[launch] = LaunchFailure(f"{CANNOT_IMPORT}: {zygote.words}")
            elif self._starts[launch] >= ZYGOTE_STARTS:
                crashed = not zygote.ready and zygote.crashed
                why = CANNOT_IMPORT if crashed else f"{ZYGOTE_STARTS} zygotes have ended"
                self.unusable[launch] = LaunchFailure(f"{why}: {zygote.words}")
        return lost

    def keep_only(self, wanted: Collection[Launch]) -> None:
        """End the zygotes that are no longer needed."""
        for launch in set(self._zygotes) - set(wanted):
            self._zygotes.pop(launch).end()

    def end(self) -> None:
        self.keep_only(())

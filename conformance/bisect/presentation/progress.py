"""Print a line for every trial; a terminal also shows the current activity."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.text import Text

from conformance.bisect.next_step import Next
from conformance.bisect.search import Class
from conformance.bisect.state import BisectionState, CandidateTrial
from conformance.report.render.terminal import shown
from conformance.runner import CellStarted, Event, GroupFinished, GroupStarted, WorkerDied

_STYLES = {Class.GOOD: "green", Class.BAD: "red", Class.UNTESTABLE: "yellow"}
_WORDS = 200


class BisectionProgress:
    """A context manager: `with BisectionProgress(state, console) as progress: …`"""

    def __init__(self, state: BisectionState, console: Console) -> None:
        self._console = console
        self._count = len(state.candidates)
        self._number = len(state.attempts)
        self._label = ""
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        words = f"{self._count} candidates"
        if self._number:
            words += f", {self._number} trials from before"
        self._console.print(Text(words))
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, step: Next) -> None:
        self._number += 1
        again = " again" if step.again else ""
        self._label = f"[{self._number}] {step.candidate.label}{again}"
        if self._status is None:
            self._console.print(Text(shown(f"{self._label} …")), soft_wrap=True)
        else:
            self.line("its environment")

    def line(self, message: str) -> None:
        """Show the current activity."""
        if self._status is not None:
            words = f"{self._label}: {message}".splitlines()[0][:_WORDS]
            self._status.update(Text(shown(words)))

    def event(self, event: Event) -> None:
        """Show an event of the runner."""
        match event:
            case GroupStarted():
                self.line(f"{event.id}: loading")
            case CellStarted():
                self.line(f"{event.id}: {event.case}")
            case GroupFinished():
                self.line(f"{event.id}: done")
            case WorkerDied():
                self.line(f"{event.id}: {event.status.value}: {event.reason}")

    def end(self, _: Next, attempt: CandidateTrial, outcome: Class) -> None:
        words = attempt.untestable or "; ".join(dict.fromkeys(map(str, attempt.signatures)))
        took = f"{attempt.seconds:.0f} s"
        if attempt.environment:
            took += f", environment {attempt.environment} {'built' if attempt.built else 'reused'}"
        text = Text(shown(f"{self._label}: "))
        text.append(outcome.value, style=_STYLES[outcome])
        text.append(shown(f" ({took}): {' '.join(words.split())[:_WORDS]}"))
        self._console.print(text, soft_wrap=True)

"""Progress of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from conformance.report.render.terminal import clean
from conformance.runner.planning.engine_settings import MARK
from conformance.runner.scheduling.events import (
    CellFinished,
    CellStarted,
    Event,
    GroupFinished,
    GroupLoaded,
    GroupStarted,
    WorkerDied,
)
from conformance.runner.store import gathered_in
from conformance.spec.records import Cell, Precision, Status


@dataclass
class BusyWorker:
    """One busy worker: what it is doing, and since when (seconds of the clock)."""

    name: str
    doing: str
    since: float


@dataclass
class Board:
    """The state of a run. Groups without planned cells (the reference, a checkpoint build) are
    shown while they run, but not counted.
    """

    planned: dict[str, set[str]]
    clock: Callable[[], float]
    begun: float = field(init=False)
    running: dict[str, BusyWorker] = field(default_factory=dict)
    done: set[tuple[str, str]] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    ended: dict[Status, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begun = self.clock()

    @property
    def cells(self) -> int:
        return sum(map(len, self.planned.values()))

    @property
    def elapsed(self) -> float:
        return self.clock() - self.begun

    def take(self, event: Event) -> str:
        """Account for one event; return the line to print, empty if there is none."""
        match event:
            case GroupStarted():
                self._doing(event.id, "loading" if event.attempt == 1 else f"start {event.attempt}")
            case GroupLoaded():
                self._doing(event.id, "loaded")
            case CellStarted():
                self._doing(event.id, event.case)
            case CellFinished():
                self._count(event)
            case WorkerDied():
                self._doing(event.id, "ended early")
                where = f" in {event.case}" if event.case else ""
                return f"{event.id}: {event.status.value}{where}: {event.reason}"
            case GroupFinished():
                return self._end(event)
        return ""

    def _doing(self, name: str, doing: str) -> None:
        self.running[name] = BusyWorker(name, doing, self.clock())

    def _count(self, event: CellFinished) -> None:
        # Cells with special engine settings still count for their column.
        column = event.id.partition(MARK)[0]
        key = (column, event.case)
        if event.case in self.planned.get(column, ()) and key not in self.done:
            self.done.add(key)
            self.ended[event.status] = self.ended.get(event.status, 0) + 1

    def _end(self, event: GroupFinished) -> str:
        started = self.running.pop(event.id, None)
        self.finished.add(event.id)
        planned = self.planned.get(event.id)
        if event.ok and planned is None and started is None:
            return ""
        # A group that failed as a whole has no events for its cells.
        for case in planned or ():
            self.done.add((event.id, case))
        count = f"{len(planned)} cells" if planned is not None else "done"
        line = f"{event.id}: {'from before, ' if event.reused else ''}{count}"
        return line if event.ok else f"{line}: {event.reason}"

    def tally(self) -> str:
        groups = sum(name in self.finished for name in self.planned)
        return (
            f"{len(self.done)}/{self.cells} cells, {groups}/{len(self.planned)} groups, "
            f"{clock(self.elapsed)}"
        )


def clock(seconds: float) -> str:
    minutes, remainder = divmod(int(seconds), 60)
    return f"{minutes}:{remainder:02}"


class Progress:
    """`with Progress(cells, console) as progress: run(on_event=progress)`."""

    def __init__(
        self,
        cells: Sequence[Cell],
        console: Console,
        now: Callable[[], float] = time.monotonic,
        precisions: Sequence[Precision] = (Precision.BF16,),
        float32_only: Collection[Cell] = (),
    ) -> None:
        planned: dict[str, set[str]] = {}
        for cell, precision in product(cells, precisions):
            if precision is Precision.BF16 and cell in float32_only:
                continue
            column = gathered_in(cell.backend, precision)
            planned.setdefault(f"{cell.model}:{column}", set()).add(cell.key)
        self.board = Board(planned, now)
        self._console = console
        self._live = (
            Live(get_renderable=self.render, console=console, transient=True, refresh_per_second=4)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        line = self.board.take(event)
        if not line:
            return
        if self._live is None:
            self._console.print(Text(clean(f"[{self.board.tally()}] {line}")), soft_wrap=True)
        elif isinstance(event, WorkerDied) or (isinstance(event, GroupFinished) and not event.ok):
            self._console.print(Text(clean(line), style="magenta"))

    def note(self, line: str) -> None:
        """Print a line that stays, such as the result of a model."""
        mark = "" if self._live is not None else f"[{self.board.tally()}] "
        self._console.print(Text(clean(f"{mark}{line}")), soft_wrap=True)

    def render(self) -> RenderableType:
        """Draw one bar, and one line for each busy worker."""
        board = self.board
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, board.cells), completed=len(board.done), width=30)
        ended = list(board.ended.items())
        failed = [f"{count} {status.value}" for status, count in ended if status is not Status.OK]
        head.add_row(bar, Text(board.tally()), Text(", ".join(failed), style="dim"))
        workers = Table.grid(padding=(0, 2))
        # The display's thread draws while the run's thread changes the board.
        for worker in list(board.running.values()):
            took = f"{board.clock() - worker.since:.0f} s"
            workers.add_row(Text(clean(worker.name)), Text(clean(worker.doing), style="dim"), took)
        return Group(head, workers)

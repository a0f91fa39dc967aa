"""Progress of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
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


class Progress:
    """`with Progress(cells, console) as progress: run(on_event=progress)`.

    Groups without planned cells (the reference, a checkpoint build) are shown while they run, but
    not counted. `running` holds what each busy worker is doing, and since when (seconds of `now`).
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        console: Console,
        now: Callable[[], float] = time.monotonic,
        precisions: Sequence[Precision] = (Precision.BF16,),
        float32_only: Collection[Cell] = (),
    ) -> None:
        self.planned: dict[str, set[str]] = {}
        for cell, precision in product(cells, precisions):
            if precision is Precision.BF16 and cell in float32_only:
                continue
            column = gathered_in(cell.backend, precision)
            self.planned.setdefault(f"{cell.model}:{column}", set()).add(cell.key)
        self.running: dict[str, tuple[str, float]] = {}
        self.done: set[tuple[str, str]] = set()
        self.finished: set[str] = set()
        self.ended = Counter[Status]()
        self._now = now
        self._begun = now()
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
        line = self.take(event)
        if not line:
            return
        if self._live is None:
            self.note(line)
        elif isinstance(event, WorkerDied) or (isinstance(event, GroupFinished) and not event.ok):
            self._console.print(Text(clean(line), style="magenta"))

    def note(self, line: str) -> None:
        """Print a line that stays, such as the result of a model."""
        mark = "" if self._live is not None else f"[{self.tally()}] "
        self._console.print(Text(clean(f"{mark}{line}")), soft_wrap=True)

    def take(self, event: Event) -> str:
        """Account for one event; return the line to print, empty if there is none."""
        match event:
            case GroupStarted():
                doing = "loading" if event.attempt == 1 else f"start {event.attempt}"
                self.running[event.id] = (doing, self._now())
            case GroupLoaded():
                self.running[event.id] = ("loaded", self._now())
            case CellStarted():
                self.running[event.id] = (event.case, self._now())
            case CellFinished():
                # Cells with special engine settings still count for their column.
                key = (event.id.partition(MARK)[0], event.case)
                if event.case in self.planned.get(key[0], ()) and key not in self.done:
                    self.done.add(key)
                    self.ended[event.status] += 1
            case WorkerDied():
                self.running[event.id] = ("ended early", self._now())
                where = f" in {event.case}" if event.case else ""
                return f"{event.id}: {event.status.value}{where}: {event.reason}"
            case GroupFinished():
                return self._end(event)
        return ""

    def _end(self, event: GroupFinished) -> str:
        started = self.running.pop(event.id, None)
        self.finished.add(event.id)
        planned = self.planned.get(event.id)
        if event.ok and planned is None and started is None:
            return ""
        # A group that failed as a whole has no events for its cells.
        self.done.update((event.id, case) for case in planned or ())
        count = f"{len(planned)} cells" if planned is not None else "done"
        line = f"{event.id}: {'from before, ' if event.reused else ''}{count}"
        return line if event.ok else f"{line}: {event.reason}"

    @property
    def cells(self) -> int:
        return sum(map(len, self.planned.values()))

    def tally(self) -> str:
        groups = sum(name in self.finished for name in self.planned)
        minutes, seconds = divmod(int(self._now() - self._begun), 60)
        return (
            f"{len(self.done)}/{self.cells} cells, {groups}/{len(self.planned)} groups, "
            f"{minutes}:{seconds:02}"
        )

    def render(self) -> RenderableType:
        """Draw one bar, and one line for each busy worker."""
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, self.cells), completed=len(self.done), width=30)
        ended = list(self.ended.items())
        failed = [f"{count} {status.value}" for status, count in ended if status is not Status.OK]
        head.add_row(bar, Text(self.tally()), Text(", ".join(failed), style="dim"))
        workers = Table.grid(padding=(0, 2))
        # The display's thread draws while the run's thread changes what is drawn.
        for name, (doing, since) in list(self.running.items()):
            took = f"{self._now() - since:.0f} s"
            workers.add_row(Text(clean(name)), Text(clean(doing), style="dim"), took)
        return Group(head, workers)

"""Print a line for each worker of a self-test that ends."""

from __future__ import annotations

from rich.console import Console

from conformance.runner.events import Event, GroupFinished


class Lines:
    """Prints only the ends of groups: deaths are intended here."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __call__(self, event: Event) -> None:
        if isinstance(event, GroupFinished):
            words = "done" if event.ok else event.reason
            self.console.print(f"{event.id}: {words}", markup=False, soft_wrap=True)

"""The runner's engines for a search: cases go to engines that stay open."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from conformance.runner.scheduling import Event, Further, GroupFinished

#: The cases to run, by the id of the job whose engine runs them.
Request = Mapping[str, Further]

#: A search: yields the cases to run, and is resumed when every case has an outcome.
Steps = Generator[Request, None, None]


class Session:
    """Hands the cases of a search to the engines of these jobs when they are idle."""

    def __init__(self, jobs: set[str], steps: Steps) -> None:
        self._steps = steps
        self._alive = set(jobs)
        self._idle: set[str] = set()
        self._queue: dict[str, Further] = {}
        self._ended = False
        self.error: Exception | None = None

    def hear(self, event: Event) -> None:
        """Record an engine that has ended for good."""
        if isinstance(event, GroupFinished):
            self._alive.discard(event.id)
            self._queue.pop(event.id, None)

    def follow(self, job: str) -> Further | None:
        """Return what the idle engine of a job runs next, or None to wait; see `Planned.follow`."""
        self._idle.add(job)
        if not self._ended and self._idle >= self._alive and not self._queue:
            self._advance()
        if job in self._queue:
            self._idle.discard(job)
            return self._queue.pop(job)
        return Further(()) if self._ended else None

    def _advance(self) -> None:
        """Resume the search until it requests cases for a living engine."""
        try:
            while not self._queue:
                wanted = next(self._steps)
                self._queue = {job: one for job, one in wanted.items() if job in self._alive}
        except StopIteration:
            self._ended = True
        except Exception as error:  # noqa: BLE001 - raised again when the engines have ended
            self.error, self._ended = error, True

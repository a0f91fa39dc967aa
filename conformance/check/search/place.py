"""Where a search runs: what the engines of a check have done, and new cases for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from torch import Tensor

from conformance.builtin.user_trace import case_of
from conformance.records import Case, Group, Outcome, Status
from conformance.store import RunFolder


@dataclass(frozen=True)
class Place:
    """The folder of a check, its model, and the prompts. `truth` is the folder of transformers."""

    run: RunFolder
    model: str
    truth: str
    prompts: tuple[str, ...]
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def tries(self) -> Path:
        """Where the versions of files are written."""
        return self.run.path / "tries"

    def job(self, folder: str) -> str:
        """The id of the job that gathers into a folder."""
        return f"{self.model}:{folder}"

    def case(self, text: str, name: str, function: str, original: Path) -> Case:
        """Write a version of a file, and return the case that runs a function of it."""
        number = next(self._numbers)
        path = self.tries / str(number) / original.name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        return case_of(f"{name}~{number}", path, function, self.prompts, original=original)

    def outcome(self, folder: str, key: str) -> Outcome:
        """Return how a case ended."""
        found = self.run.outcome(self.model, folder, key)
        return found or Outcome(Status.MISSING, reason="not run")

    def seen(self, folder: str, key: str) -> dict[str, Tensor]:
        """Return what a case observed."""
        return self.run.observations(self.model, folder, key)

    def drop(self, folder: str, key: str) -> None:
        """Remove what a case observed."""
        self.run.group_folder(self.model, folder).drop_cell(key)

    def group(self, folder: str) -> Group | None:
        """Return what the worker of a folder said of itself."""
        return self.run.group(self.model, folder)

    @property
    def layer_list(self) -> str:
        """Where transformers' model has its layers."""
        group = self.group(self.truth)
        return str(group.identity.get("layer_list", "")) if group else ""

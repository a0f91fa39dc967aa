"""A search's access to the run folder: the outcomes of its cases, and new cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from torch import Tensor

from conformance.runner.store import RunFolder
from conformance.spec.builtin.user_trace import case_of
from conformance.spec.records import Case, Group, Outcome, Status


@dataclass(frozen=True)
class Place:
    """The run folder, model and prompts of a check. `reference` is the folder of transformers."""

    run: RunFolder
    model: str
    reference: str
    prompts: tuple[str, ...]
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def tries(self) -> Path:
        """The folder for the versions of files."""
        return self.run.path / "tries"

    def job(self, folder: str) -> str:
        """Return the id of the job that writes to a folder."""
        return f"{self.model}:{folder}"

    def case(self, text: str, name: str, function: str, original: Path) -> Case:
        """Write a version of a file, and return a case that runs one of its functions."""
        number = next(self._numbers)
        path = self.tries / str(number) / original.name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        return case_of(f"{name}~{number}", path, function, self.prompts, original=original)

    def outcome(self, folder: str, key: str) -> Outcome:
        """Return the outcome of a case."""
        found = self.run.outcome(self.model, folder, key)
        return found or Outcome(Status.MISSING, reason="not run")

    def seen(self, folder: str, key: str) -> dict[str, Tensor]:
        """Return the observations of a case."""
        return self.run.observations(self.model, folder, key)

    def drop(self, folder: str, key: str) -> None:
        """Remove the observations of a case."""
        self.run.group_folder(self.model, folder).drop_cell(key)

    def group(self, folder: str) -> Group | None:
        """Return the record of a folder's worker."""
        return self.run.group(self.model, folder)

    @property
    def layer_list(self) -> str:
        """The path of the layer list in transformers' model, "" if unknown."""
        group = self.group(self.reference)
        return str(group.identity.get("layer_list", "")) if group else ""

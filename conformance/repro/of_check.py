"""Run `conformance repro` on a check: the user's own file, plus a call that checks it again."""

from __future__ import annotations

import pprint
from dataclasses import dataclass
from pathlib import Path

from conformance.check import kept
from conformance.check.gather import Asked
from conformance.errors import ConformanceError
from conformance.inputs.user_file import UserFile
from conformance.planning.named import local_folder
from conformance.planning.trust import Executed
from conformance.records import Backend, CellResult, Column
from conformance.repro.script import comment, package_name, split_opening
from conformance.store import RunFolder

_CHECK = """\
if __name__ == "__main__":
    import subprocess
    import sys

    check = [sys.executable, "-m", "conformance", "check", __file__, *ARGUMENTS, *sys.argv[1:]]
    sys.exit(subprocess.run(check, check=False).returncode)
"""


@dataclass(frozen=True)
class CheckScript:
    """The script for one cell of a check."""

    run: RunFolder
    cell: CellResult
    asked: Asked
    file: UserFile
    backend: Backend

    def text(self, name: str) -> str:
        """Return the script's text; `name` is its file name."""
        opening, own = split_opening(self.file.text)
        beside = ", ".join(self.beside())
        parts = [
            "#!/usr/bin/env python3",
            # The first two lines contain no data of the check, which could name an encoding.
            "#",
            *comment(self.cell.id),
            "#",
            *comment(f"python {name}: exits as the check does, 0 the same, 1 not the same"),
            "#",
            *comment(f"{self.cell.verdict.value}: {self.cell.reason}"),
            *comment(self.cell.diagnosis),
            *comment(f"It needs {package_name()}."),
            *comment(f"It reads {beside}, beside it." if beside else ""),
            *opening,
            "",
            f"ARGUMENTS = {pprint.pformat(self._arguments())}\n",
            _CHECK,
            "",
            f"# {self.file.path.name}, as it was checked.",
            *own,
        ]
        return "\n".join(parts).rstrip() + "\n"

    def executed(self) -> Executed:
        """Return what the script would start and load, as the check's files name it: model, engine,
        the user's file, and the files that it imports or reads.
        """
        code = tuple(kept.contents(self.run, self.file).values())
        return Executed((self.asked.model,), (Column(self.backend),), code=code)

    def beside(self) -> dict[str, Path]:
        """Return the files that must lie next to the script, by their names there."""
        files = kept.contents(self.run, self.file)
        return {name: path for name, path in files.items() if name != self.file.path.name}

    def _arguments(self) -> list[str]:
        model = str(local_folder(self.asked.model) or self.asked.named)
        prompts = [word for prompt in self.asked.prompts for word in ("--prompt", prompt)]
        return ["-m", model, "-b", self.backend.id, "--search", "0", *prompts]


def script_of(run: RunFolder, cell: CellResult) -> CheckScript:
    """Return the script. Raises ConformanceError for a dump, or a file that no engine ran."""
    asked = kept.asked_of(run)
    file = next((one for one in asked.files if one.name == cell.case), None)
    backend = next((one for one in asked.engines if one.id == cell.backend), None)
    if file is None or backend is None:
        raise ConformanceError(
            f"{cell.id} was run on no engine: there is nothing to show again",
            remedy=f"check it again: {cell.command}",
        )
    return CheckScript(run, cell, asked, file, backend)

"""`conformance repro` of a check: the user's own file, run on both sides and compared.

Two functions on one stage become a script that needs nnsight, transformers and vLLM alone: the
file, and the text of `_ALONE`. Any other has itself checked by the package that is installed.
"""

from __future__ import annotations

import pprint
from collections.abc import Iterator
from pathlib import Path

import conformance
from conformance.check import kept
from conformance.check.gather import room
from conformance.check.models import local_folder
from conformance.errors import ConformanceError
from conformance.planning.trust import Executed
from conformance.records import CellResult, Column, Job, Precision
from conformance.repro.script import comment, package_name, split_opening
from conformance.scenario import PAIR
from conformance.store import RunFolder, gathered_in
from conformance.store.files import read_record

#: What a script that needs nothing of this package runs its two sides by: text, never imported.
_ALONE = Path(conformance.__file__).parent / "engines" / "user_trace" / "alone.py"

_CHECK = """\
if __name__ == "__main__":
    import subprocess
    import sys

    check = [sys.executable, "-m", "conformance", "check", __file__, *ARGUMENTS, *sys.argv[1:]]
    sys.exit(subprocess.run(check, check=False).returncode)
"""


class Script:
    """The script of one answer of a check.

    Raises ConformanceError for a check of a dump, and for a file that no engine ran.
    """

    def __init__(self, run: RunFolder, cell: CellResult) -> None:
        self.run = run
        self.cell = cell
        self.asked = asked = kept.asked_of(run)
        traced = next((one for one in asked.files if one.name == cell.case), None)
        backend = next((one for one in asked.engines if one.id == cell.backend), None)
        if traced is None or backend is None:
            raise ConformanceError(
                f"{cell.id} was run on no engine: there is nothing to show again",
                remedy=f"check it again: {cell.command}",
            )
        self.traced = traced
        self.backend = backend
        one_stage = backend.pipeline == 1 and backend.tensor == 1
        self.alone = one_stage and traced.ported and cell.precision is Precision.FLOAT32

    def text(self, file: str) -> str:
        """Return the script; `file` is its name."""
        opening, own = split_opening(self.traced.text)
        beside = ", ".join(self.beside())
        parts = [
            "#!/usr/bin/env python3",
            # Nothing of a check's is on the first two lines, where it could name an encoding.
            "#",
            *comment(self.cell.id),
            "#",
            *comment(f"python {file}: exits with 0 the same, 1 not the same"),
            "#",
            *comment(f"{self.cell.verdict.value}: {self.cell.reason}"),
            *comment(self.cell.diagnosis),
            *comment("" if self.alone else f"It needs {package_name()}."),
            *comment(f"It reads {beside}, beside it." if beside else ""),
            *opening,
            "",
            *(self._without_package() if self.alone else self._checked_again()),
            "",
            f"# {self.traced.path.name}, as it was checked.",
            *own,
        ]
        return "\n".join(parts).rstrip() + "\n"

    def executed(self) -> Executed:
        """Return what the script would start and load, all of it named by the check's files: its
        model and its engine, the user's file and what that imports or reads.
        """
        weights = (self._checkpoint(),) if self.alone else ()
        code = tuple(kept.contents(self.run, self.traced).values())
        columns = (Column(self.backend),)
        return Executed((self.asked.model,), columns, code=code, checkpoints=weights)

    def beside(self) -> dict[str, Path]:
        """Return what must lie beside the script, by its name there."""
        files = kept.contents(self.run, self.traced)
        return {name: path for name, path in files.items() if name != self.traced.path.name}

    def _without_package(self) -> Iterator[str]:
        """Both sides and the comparison, by the text of `_ALONE`."""
        checkpoint = self._checkpoint()
        yield from split_opening(_ALONE.read_text(encoding="utf-8"))[1]
        data = {
            "checkpoint": str(checkpoint),
            "prompts": list(self.asked.prompts or PAIR),
            "gpu_share": 0.05,  # of its memory to be free: the cache's size is given
            **room(checkpoint),
        }
        yield f"ASKED = {pprint.pformat(data, sort_dicts=False)}\n"
        yield 'if __name__ == "__main__":\n    sys.exit(repro_main(ASKED))'

    def _checked_again(self) -> Iterator[str]:
        """The check itself, of this file on this engine."""
        model = str(local_folder(self.asked.model) or self.asked.named)
        prompts = [word for prompt in self.asked.prompts for word in ("--prompt", prompt)]
        arguments = ["-m", model, "-b", self.backend.id, "--search", "0", *prompts]
        yield f"ARGUMENTS = {pprint.pformat(arguments)}\n"
        yield _CHECK

    def _checkpoint(self) -> Path:
        column = gathered_in(self.backend.id, Precision.FLOAT32)
        folder = self.run.group_folder(self.cell.model, column).path
        job = read_record(Job, folder / "job.json")
        if job is None:
            raise ConformanceError(
                "the check has no job of this engine",
                path=folder,
                remedy=f"check it again: {self.cell.command}",
            )
        return job.checkpoint

"""Build the script of one cell. For a run it is the scenario's file with the recorded data as
literals, for a check the user's own file with a call that checks it again.

Data of a run enters a script only as a comment or a literal: `comment` and `repr`.
"""

from __future__ import annotations

import ast
import pprint
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import conformance
from conformance.commands.check import stored_check
from conformance.commands.check.gather import CheckRequest
from conformance.commands.repro.rerun import BESIDE, RECORDED, Recorded
from conformance.engines import ENGINES
from conformance.errors import ConformanceError
from conformance.judge.runs.attributing import find_one_stage
from conformance.runner.planning.named import local_folder
from conformance.runner.planning.trust import Executed
from conformance.runner.store import RunFolder
from conformance.spec.inputs.files_beside import needed_files
from conformance.spec.inputs.user_file import UserFile
from conformance.spec.records import (
    Backend,
    Cell,
    CellResult,
    Column,
    Group,
    Model,
    Results,
    Verdict,
)
from conformance.spec.records.base import adapter
from conformance.spec.scenario import Scenario

_CALL = """\
if __name__ == "__main__":
    import sys

    from conformance.commands.repro.rerun import main

    sys.exit(main(__file__))
"""
_WIDTH = 98
_NAME_LENGTH = 150


def script_name(cell: CellResult) -> str:
    """Return a file name that Python can import."""
    name = re.sub(r"\W+", "_", cell.id, flags=re.ASCII).strip("_")
    return f"repro_{name[:_NAME_LENGTH]}.py"


def hide_folders(cell: CellResult) -> CellResult:
    """Return the cell without local folder paths, for readers upstream."""

    def hide(words: str) -> str:
        known = re.sub(r"/[^\s\"']*?/((?:site-packages|conformance|scenarios)/)", r".../\1", words)
        return re.sub(r'"/[^"\n]*/([^"/\n]+\.py")', r'".../\1', known)

    reason, diagnosis, detail = map(hide, (cell.reason, cell.diagnosis, cell.detail))
    return replace(cell, reason=reason, diagnosis=diagnosis, detail=detail)


def collect_facts(results: Results, cell: CellResult, model: Model, column: Column) -> Recorded:
    """Return what the script must know about the run.

    Raises ConformanceError for a cell that was not run, or was run on an engine from elsewhere.
    """
    if column.engine not in ENGINES:
        raise ConformanceError(
            f"the engine of {column.id!r}, {column.engine!r}, is no engine of this project",
            remedy=f"scripts can be written of cells on {', '.join(ENGINES)}",
        )
    neutral = {Verdict.SKIPPED, Verdict.MISSING, Verdict.UNTESTABLE}
    if cell.verdict in neutral and not cell.observations:
        raise ConformanceError(f"{cell.id} was not run: {cell.reason}", remedy=cell.command)
    groups = {(group.model, group.backend): group for group in results.groups}
    group = groups.get((cell.model, cell.backend)) or Group(cell.model, cell.backend)
    single = find_one_stage(column, results.columns)
    info = next((info for info in results.models if info.id == model.id), None)
    device = group.identity.get("device") or results.environment.device
    return Recorded(
        run=results.run.id,
        cell=Cell(cell.model, cell.backend, cell.scenario, cell.case),
        verdict=cell.decided or cell.verdict,
        reason=cell.reason,
        device="cuda" if str(device).startswith("cuda") else "cpu",
        model=model,
        columns=(column, *([single] if single else [])),
        checkpoint=info.digest if info else "",
        versions=group.versions or results.environment.versions,
        precision=cell.precision,
        thresholds=results.environment.thresholds,
    )


def text(cell: CellResult, known: Recorded, scenario: Scenario, *, file: str) -> str:
    """Return the script, which imports the installed package; `file` is its name. Run as a program,
    the scenario's file, which is there verbatim, reads itself instead of executing the trace.
    """
    path = scenario.path
    opening, rest = split_opening(path.read_text(encoding="utf-8").rstrip())
    names = [name for name in needed_files(path) if name.endswith(".py") and name != path.name]
    beside = {name: (path.parent / name).read_text(encoding="utf-8") for name in names}
    data = adapter(Recorded).dump_python(known, mode="json", exclude_defaults=True)
    parts = [
        *_header(cell, known, file),
        *opening,
        "",
        _CALL,
        *rest,
        "",
        "",
        "# What was recorded, and what the case is of: read as literals, never executed.",
        *_literal(RECORDED, {"scenarios": path.parent.name, **data}),
        *(_literal(BESIDE, beside) if beside else ()),
    ]
    return "\n".join(parts) + "\n"


def split_opening(source: str) -> tuple[list[str], list[str]]:
    """Split a file into its docstring and future imports, which must come first, and the rest."""
    lines = source.splitlines()
    end = 0
    for index, node in enumerate(ast.parse(source).body):
        meaning = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not (meaning or future):
            break
        end = node.end_lineno or node.lineno
    return lines[:end], lines[end:]


def _header(cell: CellResult, known: Recorded, file: str) -> Iterator[str]:
    """Yield comments. The first two contain no data of a run, which could name an encoding."""
    yield from ("#!/usr/bin/env python3", "#", *comment(cell.id), "#")
    yield from comment(
        "Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's "
        "data are here; the rest (engines, the reference, the judge) is "
        f"{package_name('`conformance`')}, which must be installed."
    )
    yield "#"
    yield f"#     python {file} [--checkpoint FOLDER] [--python INTERPRETER]"
    yield "#"
    yield "#     0  it passes                        1  it fails, in the way that is recorded here"
    yield "#     2  it could not be run at all       3  it fails, in another way"
    yield "#"
    column = known.columns[0]
    if column.interpreter:
        yield from comment(f"The engine runs on {column.interpreter}, an environment of its own:")
        yield from comment(shlex.join(column.requirements))
        yield "#"
    versions = ", ".join(f"{name} {version}" for name, version in known.versions.items())
    yield from comment(
        f"Recorded in run {known.run} in {known.precision} on {known.device}, with {versions}:"
    )
    yield from comment(f"{cell.verdict.value}: {cell.reason}")
    yield from comment(cell.diagnosis)
    yield from comment(f"culprit: {cell.attribution}" if cell.attribution else "")


def package_name(name: str = "conformance") -> str:
    """Return the name of this package with its version, where that is known."""
    known = conformance.__version__ != conformance.UNBUILT
    return f"{name} {conformance.__version__}" if known else name


def comment(words: str) -> list[str]:
    """Return text of a run as comment lines, which nothing in the text can end."""
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(words.split()))
    return textwrap.wrap(plain, _WIDTH - 2, initial_indent="# ", subsequent_indent="# ")


def _literal(name: str, value: object) -> list[str]:
    printed = pprint.pformat(value, indent=1, width=_WIDTH, sort_dicts=False)
    return [f"{name} = {printed}", ""]


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
    request: CheckRequest
    file: UserFile
    backend: Backend

    def text(self, name: str) -> str:
        """Return the script's text; `name` is its file name."""
        opening, own = split_opening(self.file.text)
        beside = ", ".join(self.beside())
        model = str(local_folder(self.request.model) or self.request.named)
        prompts = [word for prompt in self.request.prompts for word in ("--prompt", prompt)]
        arguments = ["-m", model, "-b", self.backend.id, "--search", "0", *prompts]
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
            f"ARGUMENTS = {pprint.pformat(arguments)}\n",
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
        code = tuple(stored_check.contents(self.run, self.file).values())
        return Executed((self.request.model,), (Column(self.backend),), code=code)

    def beside(self) -> dict[str, Path]:
        """Return the files that must lie next to the script, by their names there."""
        files = stored_check.contents(self.run, self.file)
        return {name: path for name, path in files.items() if name != self.file.path.name}


def script_of(run: RunFolder, cell: CellResult) -> CheckScript:
    """Return the script. Raises ConformanceError for a dump, or a file that no engine ran."""
    request = stored_check.read_request(run)
    file = next((one for one in request.files if one.name == cell.case), None)
    backend = next((one for one in request.engines if one.id == cell.backend), None)
    if file is None or backend is None:
        words = f"{cell.id} was run on no engine: there is nothing to show again"
        raise ConformanceError(words, remedy=f"check it again: {cell.command}")
    return CheckScript(run, cell, request, file, backend)

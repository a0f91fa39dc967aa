"""`conformance repro` of a check: the user's own file, run on both sides and compared.

Two functions on one stage become a script that needs nnsight, transformers and vLLM alone: the
file, and the text of `_ALONE`. Anything else needs the adapter or the relay of this package: the
script is the file, which has itself checked by the package that is installed.
"""

from __future__ import annotations

import ast
import pprint
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import conformance
from conformance.check import kept
from conformance.check.gather import Asked, room
from conformance.check.source import UserFile
from conformance.errors import ConformanceError
from conformance.planning.trust import Executed
from conformance.records import Backend, CellResult, Column, Job, Precision
from conformance.repro import package
from conformance.scenario import PAIR
from conformance.store import RunFolder, gathered_in
from conformance.store.files import read_record

#: Of a GPU's memory, what vLLM asks to be free; the cache's size is given.
_GPU_SHARE = 0.05

#: What a script that needs nothing of this package runs its two sides by: text, never imported.
_ALONE = Path(conformance.__file__).parent / "engines" / "user_trace" / "alone.py"

_CHECK = """\
if __name__ == "__main__":
    import subprocess
    import sys

    check = [sys.executable, "-m", "conformance", "check", __file__, *ARGUMENTS, *sys.argv[1:]]
    sys.exit(subprocess.run(check, check=False).returncode)
"""

_WIDTH = 98


def text(run: RunFolder, cell: CellResult, *, file: str) -> str:
    """The script of one answer; `file` is its name.

    Raises ConformanceError for a check of a dump, and for a file that no engine ran.
    """
    asked = kept.asked_of(run)
    traced, backend = _shown(asked, cell)
    opening, own = _split(traced.text)
    needs, body = (
        ("", _alone(run, asked, cell))
        if _is_alone(traced, backend, cell)
        else (f"It needs {package.named()}.", _checked_again(asked, backend))
    )
    beside = ", ".join(data_of(run, cell))
    parts = [
        "#!/usr/bin/env python3",
        # Nothing of a check's is on the first two lines, where it could name an encoding.
        "#",
        *_comment(cell.id),
        "#",
        *_comment(f"python {file}      exits with 0 the same, 1 not the same"),
        "#",
        *_comment(f"{cell.verdict.value}: {cell.reason}"),
        *_comment(cell.diagnosis),
        *_comment(needs),
        *_comment(f"It reads {beside}, beside it." if beside else ""),
        opening,
        "",
        *body,
        "",
        f"# {traced.path.name}, as it was checked.",
        own,
    ]
    return "\n".join(parts).rstrip() + "\n"


def executed(run: RunFolder, cell: CellResult) -> Executed:
    """What the script of an answer would start and load, all of it named by the check's files: its
    model and its engine, the user's file and what that imports or reads. Raises as `text` does.
    """
    asked = kept.asked_of(run)
    traced, backend = _shown(asked, cell)
    weights = (_checkpoint(run, cell),) if _is_alone(traced, backend, cell) else ()
    code = kept.contents(run, traced)
    return Executed((asked.model,), (Column(backend),), code=code, checkpoints=weights)


def data_of(run: RunFolder, cell: CellResult) -> dict[str, Path]:
    """What must lie beside the script of an answer, by its name there."""
    traced, _ = _shown(kept.asked_of(run), cell)
    folder = kept.folder_of(run, traced.name)
    paths = kept.contents(run, traced)
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if name != traced.path.name}


def _shown(asked: Asked, cell: CellResult) -> tuple[UserFile, Backend]:
    """The file and the engine of an answer."""
    traced = next((one for one in asked.files if one.name == cell.case), None)
    backend = next((one for one in asked.engines if one.id == cell.backend), None)
    if traced is None or backend is None:
        raise ConformanceError(
            f"{cell.id} was run on no engine: there is nothing to show again",
            remedy=f"check it again: {cell.command}",
        )
    return traced, backend


def _is_alone(traced: UserFile, backend: Backend, cell: CellResult) -> bool:
    """Whether its script needs nothing of this package."""
    plain = traced.ported and backend.pipeline == 1 and backend.tensor == 1
    return plain and cell.precision is Precision.FLOAT32


def _alone(run: RunFolder, asked: Asked, cell: CellResult) -> Iterator[str]:
    """Both sides and the comparison, by the text of `_ALONE`."""
    checkpoint = _checkpoint(run, cell)
    yield _split(_ALONE.read_text(encoding="utf-8"))[1]
    data = {
        "checkpoint": str(checkpoint),
        "prompts": list(asked.prompts or PAIR),
        "gpu_share": _GPU_SHARE,
        **room(checkpoint),
    }
    yield f"ASKED = {pprint.pformat(data, width=_WIDTH, sort_dicts=False)}\n"
    yield 'if __name__ == "__main__":\n    sys.exit(repro_main(ASKED))'


def _checked_again(asked: Asked, backend: Backend) -> Iterator[str]:
    """The check itself, of this file on this engine."""
    [source, *_] = asked.model.sources
    model = source.file if source.kind == "path" else asked.named
    prompts = [word for prompt in asked.prompts for word in ("--prompt", prompt)]
    arguments = ["-m", model, "-b", backend.id, "--search", "0", *prompts]
    yield f"ARGUMENTS = {pprint.pformat(arguments, width=_WIDTH)}\n"
    yield _CHECK


def _checkpoint(run: RunFolder, cell: CellResult) -> Path:
    folder = run.group_folder(cell.model, gathered_in(cell.backend, Precision.FLOAT32)).path
    job = read_record(Job, folder / "job.json")
    if job is None:
        raise ConformanceError(
            "the check has no job of this engine", path=folder, remedy=f"again: {cell.command}"
        )
    return job.checkpoint


def _split(source: str) -> tuple[str, str]:
    """A file's docstring and future imports, which come first in any file, and the rest."""
    lines = source.splitlines()
    end = 0
    for index, node in enumerate(ast.parse(source).body):
        first = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (first or (isinstance(node, ast.ImportFrom) and node.module == "__future__")):
            break
        end = node.end_lineno or node.lineno
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def _comment(words: str) -> list[str]:
    """Text of a check's as comments, which nothing in it can end."""
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(words.split()))
    return textwrap.wrap(plain, _WIDTH - 2, initial_indent="# ", subsequent_indent="# ")


def script_name(cell: CellResult) -> str:
    """A file name that Python can import."""
    return f"repro_{re.sub(r'[^A-Za-z0-9]+', '_', cell.id).strip('_')}.py"

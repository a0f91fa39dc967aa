"""`conformance repro` of a check: the user's own file, run on both sides and compared.

Two functions on one stage become a script that needs nnsight, transformers and vLLM alone: the
file, and the text of `_ALONE`. What needs this package (the adapter of `trace(lm)`, the stages'
relay) is checked again by it: installed, or with `--standalone` in the script.
"""

from __future__ import annotations

import ast
import json
import pprint
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conformance
from conformance.check import kept, rerun
from conformance.check.gather import Asked, room
from conformance.check.source import UserFile
from conformance.errors import ConformanceError
from conformance.inputs import text_file
from conformance.planning.trust import Executed
from conformance.records import Backend, CellResult, Column, Job, Precision, to_json
from conformance.repro import package
from conformance.scenario import PAIR
from conformance.store import RunFolder, gathered_in
from conformance.store.files import read_record

#: Of a GPU's memory, what vLLM asks to be free; the cache's size is given.
_GPU_SHARE = 0.05

#: What such a script runs its two sides by. It is read here and never imported.
_ALONE = Path(conformance.__file__).parent / "engines" / "user_trace" / "alone.py"

_WIDTH = 98
_ENGINE = "vllm"


def text(run: RunFolder, cell: CellResult, *, file: str, standalone: bool) -> str:
    """The script of one answer; `file` is its name.

    Raises ConformanceError for a check of a dump, and for a file that no engine ran.
    """
    asked = kept.asked_of(run)
    traced, backend = _shown(asked, cell)
    if _is_alone(traced, backend, cell):
        return _alone(run, asked, traced, cell, file)
    return _checked_again(run, asked, traced, backend, cell, file, standalone=standalone)


def executed(run: RunFolder, cell: CellResult) -> Executed:
    """What the script of an answer would start and load, all of it named by the check's files: its
    model and its engine, the user's file and what that imports or reads. Raises as `text` does.
    """
    asked = kept.asked_of(run)
    traced, backend = _shown(asked, cell)
    weights = (_checkpoint(run, cell),) if _is_alone(traced, backend, cell) else ()
    code = kept.contents(run, traced)
    return Executed((asked.model,), (Column(backend),), code=code, checkpoints=weights)


def _shown(asked: Asked, cell: CellResult) -> tuple[UserFile, Backend]:
    """The file and the engine of an answer."""
    traced = next((one for one in asked.files if one.name == cell.case), None)
    backend = next((one for one in asked.backends if one.id == cell.backend), None)
    if asked.dump or traced is None or backend is None:
        raise ConformanceError(
            f"{cell.id} was run on no engine: there is nothing to show again",
            remedy=f"check it again: {cell.command}",
        )
    return traced, backend


def _is_alone(traced: UserFile, backend: Backend, cell: CellResult) -> bool:
    """Whether its script needs nothing of this package."""
    plain = traced.ported and backend.pipeline == 1 and backend.tensor == 1
    return plain and cell.precision is Precision.FLOAT32


def _alone(run: RunFolder, asked: Asked, traced: UserFile, cell: CellResult, file: str) -> str:
    """Nothing of this package is in it but the text of `_ALONE`."""
    checkpoint = _checkpoint(run, cell)
    data = {
        "checkpoint": str(checkpoint),
        "prompts": list(asked.prompts or PAIR),
        "gpu_share": _GPU_SHARE,
        **room(checkpoint),
        "beside": _beside(run, traced),
    }
    parts = [
        *_header(cell, f"python {file} [--checkpoint FOLDER]", "0 the same", "1 not the same"),
        *_comment(_reading(files_of(run, traced))),
        _opening(traced),
        _without_opening(_ALONE.read_text(encoding="utf-8")),
        "",
        *_literal("ASKED", data),
        'if __name__ == "__main__":',
        "    sys.exit(repro_main(ASKED))",
        "",
        f"# {traced.path.name}, as it was checked.",
        _without_opening(traced.text),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _checked_again(
    run: RunFolder,
    asked: Asked,
    traced: UserFile,
    backend: Backend,
    cell: CellResult,
    file: str,
    *,
    standalone: bool,
) -> str:
    """The check itself, of this file on this engine."""
    data = {
        "name": traced.path.name,
        "model": json.loads(to_json(asked.model)),
        "backend": json.loads(to_json(backend)),
        "prompts": list(asked.prompts),
        "files": list(files_of(run, traced)),
        "opening": len(_opening(traced).splitlines()),
        "verdict": cell.verdict.value,
        "sentence": cell.reason,
    }
    beside = _beside(run, traced)
    files = {}
    if standalone:
        roots = (rerun.__name__, *rerun.ENGINES)
        files = dict(package.needed(_ENGINE, [traced.text, *beside.values()], roots).files)
    call = package.unpacking(rerun.__name__) if standalone else package.call(rerun.__name__)
    line = f"python {file} [--checkpoint FOLDER]"
    needs = "" if standalone else f"It needs {package.named()}."
    parts = [
        *_header(cell, line, "0 the same", "1 not the same, as recorded", "3 another answer"),
        *_comment(needs),
        *_comment(_reading(files_of(run, traced))),
        _opening(traced),
        "",
        call,
        _without_opening(traced.text),
        "",
        "# What was checked: read as literals, never executed.",
        *_literal(rerun.CHECKED, data),
        *_literal(rerun.BESIDE, beside),
        *package.literal(files),
    ]
    return "\n".join(parts) + "\n"


def _checkpoint(run: RunFolder, cell: CellResult) -> Path:
    folder = run.group_folder(cell.model, gathered_in(cell.backend, Precision.FLOAT32)).path
    job = read_record(Job, folder / "job.json")
    if job is None:
        raise ConformanceError(
            "the check has no job of this engine", path=folder, remedy=f"again: {cell.command}"
        )
    return job.checkpoint


def _beside(run: RunFolder, traced: UserFile) -> dict[str, str]:
    """The files of its folder that the file imports, by name."""
    folder = kept.folder_of(run, traced.name)
    return {
        path.name: text_file.read(path)
        for path in sorted(folder.glob("*.py"))
        if path.name != traced.path.name
    }


def files_of(run: RunFolder, traced: UserFile) -> dict[str, Path]:
    """The files that a file of a check reads, by their names beside it."""
    folder = kept.folder_of(run, traced.name)
    return {name: folder / name for name in kept.named_files(traced, folder)}


def data_of(run: RunFolder, cell: CellResult) -> dict[str, Path]:
    """The same of an answer: what must lie beside its script."""
    files = kept.asked_of(run).files
    return next((files_of(run, one) for one in files if one.name == cell.case), {})


def _reading(files: dict[str, Path]) -> str:
    return f"It reads {', '.join(files)}, beside it." if files else ""


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


def _opening(traced: UserFile) -> str:
    return _split(traced.text)[0]


def _without_opening(source: str) -> str:
    return _split(source)[1]


def _header(cell: CellResult, line: str, *codes: str) -> Iterator[str]:
    """Comments. Nothing of a check's is on the first two lines, where it could name an encoding."""
    yield from ("#!/usr/bin/env python3", "#", *_comment(cell.id), "#")
    yield from _comment(f"{line}      exits with {', '.join(codes)}")
    yield from ("#", *_comment(f"{cell.verdict.value}: {cell.reason}"), *_comment(cell.diagnosis))


def _comment(words: str) -> list[str]:
    """Text of a check's as comments, which nothing in it can end."""
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(words.split()))
    return textwrap.wrap(plain, _WIDTH - 2, initial_indent="# ", subsequent_indent="# ")


def _literal(name: str, value: Any) -> list[str]:
    printed = pprint.pformat(value, indent=1, width=_WIDTH, sort_dicts=False)
    return [f"{name} = {printed}", ""]


def script_name(cell: CellResult) -> str:
    """A file name that Python can import."""
    return f"repro_{re.sub(r'[^A-Za-z0-9]+', '_', cell.id).strip('_')}.py"

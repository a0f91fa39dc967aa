"""What a script of a check calls where it needs this package: the file is checked once more.

The script's data are read from its text as literals: nothing of them is ever executed. Exit
codes: 0 the same, 1 the answer that was recorded, 2 it cannot be checked, 3 another answer.
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from conformance.check import answer, gather, show, source
from conformance.check.verdict import verdict_of
from conformance.errors import ConformanceError, ExitCode
from conformance.records import Backend, Model, Source, Thresholds, from_json
from conformance.repro.literals import assigned
from conformance.runner import Event, Limits

#: The names of a script's literals: what was checked, and the files beside the user's.
CHECKED, BESIDE = "CHECKED", "BESIDE"

#: The modules that open the engines of a check, which are started by their names.
ENGINES = tuple(f"conformance.engines.user_trace.{name}" for name in ("obtain", "hf", "vllm"))

_OTHERWISE = 3


def main(file: str | Path) -> int:
    """Check the file in this script again; returns its exit status."""
    try:
        return _main(Path(file))
    except ConformanceError as error:
        sys.stderr.write(f"error: {error}\n")
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception:  # noqa: BLE001 - Python's own 1 would say that the difference was seen again
        traceback.print_exc()
    return ExitCode.BAD_INPUT


def _main(file: Path) -> int:
    parser = argparse.ArgumentParser(prog=file.name)
    parser.add_argument("--checkpoint", type=Path, help="a folder with the model's weights")
    options = parser.parse_args()
    data, beside, text = read(file)
    model = from_json(Model, json.dumps(data["model"]))
    if options.checkpoint is not None:
        local = Source("path", file=str(options.checkpoint.resolve()))
        model = replace(model, sources=(local,))
    backend = from_json(Backend, json.dumps(data["backend"]))
    with tempfile.TemporaryDirectory(prefix="conformance-repro-") as temporary:
        folder = Path(temporary, "traced")
        folder.mkdir()
        for name, content in {Path(data["name"]).name: text, **beside}.items():
            (folder / Path(name).name).write_text(content, encoding="utf-8")
        for name in data.get("files", ()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.parent / name, folder / name)
        traced = source.read(folder / Path(data["name"]).name)
        prompts = tuple(data["prompts"])
        asked = gather.Asked((traced,), model, (backend,), prompts, model.id, file.name)
        run = gather.begin(asked, Path(temporary, "checks"))
        summary = gather.gather(asked, run, Limits(), _tell)
        if summary.interrupted:
            return ExitCode.INTERRUPTED
        [answered] = answer.answers(asked, run, Thresholds())
    show.show([answered.checked], Console())
    verdict = verdict_of(answered)
    code = answered.checked.answer.code
    if code is not ExitCode.UNEXPECTED:
        return code
    if verdict.value == data["verdict"]:
        return code
    sys.stdout.write(f"recorded was {data['verdict']}: {data['sentence']}\n")
    return _OTHERWISE


def read(file: Path) -> tuple[dict[str, Any], dict[str, str], str]:
    """What was checked, the files beside the user's, and the user's own. Raises ConformanceError
    for a script that holds none.
    """
    try:
        found, own = assigned(file.read_text(encoding="utf-8"), CHECKED, BESIDE)
        checked = found[CHECKED]
        return checked, found[BESIDE], user_file(own, int(checked.get("opening", -1)))
    except (KeyError, ValueError, SyntaxError) as error:
        raise ConformanceError(f"holds no check: {error}", path=file) from error


def user_file(text: str, opening: int) -> str:
    """The user's file as it was, line by line, of a script's text: so many lines of it (docstring,
    future imports) stand before the script's own statement, the others behind.
    """
    own = next((node for node in ast.parse(text).body if isinstance(node, ast.If)), None)
    if own is None or opening < 0:
        return text
    lines = text.splitlines(keepends=True)
    before, behind = lines[: own.lineno - 2], lines[(own.end_lineno or 0) + 1 :]
    return "".join([*before[len(before) - opening :], *behind])


def _tell(event: Event) -> None:
    if words := gather.words(event):
        sys.stderr.write(f"{words}\n")

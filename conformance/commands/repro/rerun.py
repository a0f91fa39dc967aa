"""Run a script of `conformance repro`: gather and judge its cell as any run does.

    sys.exit(main(__file__))

The script's data is read from its text as literals and never executed. Exit codes: 0 the cell
passes, 1 it fails as recorded, 2 it could not be run, 3 it fails in another way, 130 interrupted.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from conformance.commands.shared import execution
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.scheduling import Event, GroupStarted, TimeLimits, WorkerDied
from conformance.runner.store import ask_versions, read_versions
from conformance.spec.checkpoints import cache_folder
from conformance.spec.records import (
    Cell,
    CellResult,
    Column,
    Model,
    Precision,
    Source,
    Thresholds,
    Verdict,
    from_json,
    record,
)
from conformance.spec.scenario import discover
from conformance.spec.shortening import without_numbers

#: The names of a script's literals: the recorded data, and the modules next to the scenario's.
RECORDED, BESIDE = "RECORDED", "BESIDE"
_SHOWN = 12


@record()
class Recorded:
    """What a script knows about the run it was written from.

    `columns` are the cell's own and, if that has several pipeline stages, the same column with one
    stage. `checkpoint` is the digest of the weights, `versions` are those of the engine, `run`
    names the run. `verdict` is the one in `precision`, in which the cell runs.
    """

    run: str
    cell: Cell
    verdict: Verdict
    reason: str
    device: Literal["cpu", "cuda"]
    model: Model
    columns: tuple[Column, ...]
    checkpoint: str
    versions: Mapping[str, str]
    precision: Precision = Precision.BF16
    thresholds: Thresholds = Thresholds()


@dataclass(frozen=True)
class ParsedScript:
    """A parsed script: the scenario's source, and the data."""

    recorded: Recorded
    scenario: str
    folder: str
    beside: Mapping[str, str] = field(default_factory=dict)


def main(file: str | Path, arguments: Sequence[str] | None = None) -> int:
    """Run the script in this file again. Return the exit status."""
    try:
        return _main(Path(file), arguments)
    except ConformanceError as error:
        _say(f"error: {error}")
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception:  # noqa: BLE001 - Python's own 1 would mean "failed as recorded"
        traceback.print_exc()
    return 2


def _main(file: Path, arguments: Sequence[str] | None) -> int:
    script = read(file)
    parser = argparse.ArgumentParser(
        prog=file.name,
        description=f"Run {_shown(script.recorded.cell.id)} again and judge it.".replace("%", "%%"),
    )
    parser.add_argument("--checkpoint", type=Path, help="a folder with the model's weights")
    parser.add_argument("--python", type=Path, help="the interpreter that runs the engine")
    options = parser.parse_args(arguments)
    recorded = replace_paths(script.recorded, options.checkpoint, options.python)
    with tempfile.TemporaryDirectory(prefix="conformance-repro-") as temporary:
        result, digest = run_script(replace(script, recorded=recorded), Path(temporary))
    if not digest:
        _say(f"NOT RUN: the reference could not be computed: {result.reason}")
        return 2
    _changes(recorded, digest)
    return _report(recorded, result)


def read(file: Path) -> ParsedScript:
    """Parse a script, whose data is read as literals. Raises ConformanceError if the file holds no
    recorded cell.
    """
    try:
        text = file.read_text(encoding="utf-8")
        nodes = {
            node.targets[0].id: node
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        data = ast.literal_eval(nodes[RECORDED].value)
        beside = ast.literal_eval(nodes[BESIDE].value) if BESIDE in nodes else {}
        folder = str(data.pop("scenarios"))
        recorded = from_json(Recorded, json.dumps(data))
    except (KeyError, TypeError, ValueError, SyntaxError) as error:
        raise ConformanceError(f"holds no recorded cell: {error}", path=file) from error
    scenario = "".join(text.splitlines(keepends=True)[: nodes[RECORDED].lineno - 1])
    return ParsedScript(recorded, scenario, folder, beside)


def replace_paths(recorded: Recorded, checkpoint: Path | None, python: Path | None) -> Recorded:
    """Return the recorded data with the user's weights and interpreter, if given.

    Raises ConformanceError if this machine lacks the device or the interpreter.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device != recorded.device:
        raise ConformanceError(
            f"this was recorded on {recorded.device}, and here is {device}",
            remedy=f"run it on a machine with {recorded.device}",
        )
    columns, model = recorded.columns, recorded.model
    if python is not None:
        columns = tuple(replace(column, python=str(python)) for column in columns)
    for column in columns:
        if column.interpreter and not Path(column.interpreter).is_file():
            wanted = shlex.join(column.requirements)
            raise ConformanceError(
                "the interpreter of the cell's environment is not there",
                path=Path(column.interpreter),
                remedy=f"make one (uv venv; uv pip install {wanted}), and name it: --python",
            )
    if checkpoint is not None:
        if not checkpoint.is_dir():
            words = "there is no checkpoint"
            raise ConformanceError(words, path=checkpoint, remedy="name a folder")
        source = Source(kind="path", file=str(checkpoint.resolve()))
        model = replace(model, sources=(source,))
    return replace(recorded, columns=columns, model=model)


def run_script(script: ParsedScript, folder: Path) -> tuple[CellResult, str]:
    """Return the judged cell and the digest of the weights, "" if the reference failed. Everything
    is computed anew, in `folder`.

    Raises ConformanceError for a scenario that has no such case, KeyboardInterrupt when the
    gathering was interrupted.
    """
    recorded = script.recorded
    scenarios = write_scenario(script, folder)
    run = execution.begin(
        folder / "reports",
        (recorded.model,),
        recorded.columns,
        [replace(recorded.cell, backend=column.id) for column in recorded.columns],
        scenarios=scenarios,
        thresholds=recorded.thresholds,
        jobs=2,
        precisions=(recorded.precision,),
    )
    finished = execution.execute(
        run,
        run.plan(),
        discover(scenarios),
        cache=cache_folder(),
        limits=TimeLimits(),
        jobs=2,
        on_event=_tell,
        observations=folder / "observations",
    )
    if finished is None:
        raise KeyboardInterrupt
    reference = run.group(recorded.model.id, REFERENCE.id)
    digest = str(reference.identity.get("digest", "")) if reference else ""
    [result] = [cell for cell in finished[0].cells if cell.id == recorded.cell.id]
    return result, digest


def write_scenario(script: ParsedScript, folder: Path) -> Path:
    """Write the scenario's file and its modules below this folder. Return their folder."""
    scenarios = folder / Path(script.folder).name
    scenarios.mkdir()
    # A package: otherwise Python would import another folder of this name, such as this project's.
    own = {"__init__.py": "", f"{script.recorded.cell.scenario}.py": script.scenario}
    for name, text in {**own, **script.beside}.items():
        (scenarios / Path(name).name).write_text(text, encoding="utf-8")
    return scenarios


def _tell(event: Event) -> None:
    if isinstance(event, GroupStarted):
        _say(f"{event.backend}: begins")
    elif isinstance(event, WorkerDied):
        _say(f"{event.id}: {event.status}: {event.reason}")


def _changes(recorded: Recorded, digest: str) -> None:
    """Report what differs from the state in which the cell was recorded."""
    python = recorded.columns[0].interpreter
    now = ask_versions(Path(python)) if python else read_versions()
    for name, was in recorded.versions.items():
        if now.get(name) != was:
            _say(f"{name} is {now.get(name, 'not installed')}, was {was}")
    if digest != recorded.checkpoint:
        _say(f"the checkpoint is {digest}, was {recorded.checkpoint}")


def _report(recorded: Recorded, result: CellResult) -> int:
    """Print the verdict. Return the exit status."""
    _say("")
    failing = [judged for judged in result.observations if judged.verdict.fails]
    for judged in failing[:_SHOWN]:
        _say(f"  {judged.site}: {judged.verdict}: {judged.message}")
    if len(failing) > _SHOWN:
        _say(f"  and {len(failing) - _SHOWN} more")
    if result.verdict is Verdict.ERROR and result.detail:
        _say(result.detail)
    words = f"{result.verdict}: {result.reason}"
    words += f"\n  {result.diagnosis}" if result.diagnosis else ""
    words += f"\n  culprit: {result.attribution}" if result.attribution else ""
    if result.verdict.passes:
        code, begin = 0, "PASSES"
    elif result.harness:
        code, begin = 2, "NOT RUN"
    elif same_failure(result, recorded):
        code, begin = 1, "FAILS as recorded"
    else:
        code, begin = 3, "FAILS otherwise"
        words += f"\n(recorded: {recorded.verdict}: {recorded.reason})"
    _say(f"{begin}: {words}")
    return code


def same_failure(result: CellResult, recorded: Recorded) -> bool:
    """Return whether this is the recorded failure. Errors must also have the same message, up to
    numbers in its first line.
    """
    same = result.verdict is recorded.verdict
    if same and result.verdict in {Verdict.ERROR, Verdict.UNSUPPORTED}:
        now, then = (each.reason.strip().partition("\n")[0] for each in (result, recorded))
        return without_numbers(now) == without_numbers(then)
    return same


def _shown(text: str) -> str:
    """Return text without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _say(text: str) -> None:
    sys.stdout.write(f"{_shown(text)}\n")
    sys.stdout.flush()

"""Store a check like a run: its plan, its files, and results that every command reads.

check.json, next to plan.json, holds the rest of the request. files/ holds a copy of each file and
of the files in its folder that it needs. `conformance judge` answers again from them, and
`conformance repro` writes a script.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from conformance.commands.check.answer import answers
from conformance.commands.check.checked import Answered, CheckAnswer, decision_of, exit_code
from conformance.commands.check.gather import CheckRequest
from conformance.commands.check.searching import read_search_results
from conformance.commands.shared import execution
from conformance.errors import ConformanceError
from conformance.judge.runs.one_case import cell_result
from conformance.judge.runs.run import results_of
from conformance.runner.planning.named import DUMP
from conformance.runner.store import CHECK, RunFolder
from conformance.runner.store.files import read_record, write_record
from conformance.spec.builtin.user_trace import USER_TRACE
from conformance.spec.inputs import user_file
from conformance.spec.inputs.files_beside import needed_files
from conformance.spec.inputs.user_file import UserFile
from conformance.spec.records import (
    Cell,
    CellResult,
    Column,
    Results,
    ScenarioInfo,
    Thresholds,
    record,
)
from conformance.spec.records.base import Id


@record()
class Kept:
    """The request for a check, except its plan, and the `folder` in which the command ran.

    `named` is the model as the user named it, `files` the original path of each file, `options`
    the command's options for a repeated check.
    """

    named: str
    prompts: tuple[str, ...]
    files: Mapping[Id, str]
    folder: str = ""
    options: tuple[str, ...] = ()


def begin(request: CheckRequest, reports: Path) -> RunFolder:
    """Return a new run folder with the plan of a check and copies of the files that it needs."""
    model, columns = request.model, tuple(map(Column, request.backends))
    cells = [
        Cell(model.id, column.id, USER_TRACE.name, file.name)
        for column, file in product(columns, request.files)
    ]
    run = execution.begin(
        reports, (model,), columns, cells, scenarios=(), thresholds=Thresholds(), jobs=1
    )
    for file in request.files:
        for name in needed_files(file.path):
            copy = folder_of(run, file.name) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.path.parent / name, copy)
    files = {file.name: str(file.path) for file in request.files}
    kept = Kept(request.named, request.prompts, files, str(Path.cwd()), request.options)
    write_record(run.path / CHECK, kept)
    return run


def folder_of(run: RunFolder, name: str) -> Path:
    """Return the folder for the copies of a checked file and of the files that it needs."""
    return run.path / "files" / name


def contents(run: RunFolder, file: UserFile) -> dict[str, Path]:
    """Return the copies kept for a file, by name: itself, what it imports and what it reads."""
    folder = folder_of(run, file.name)
    found = filter(Path.is_file, sorted(folder.rglob("*")))
    return {path.relative_to(folder).as_posix(): path for path in found}


def read_request(run: RunFolder) -> CheckRequest:
    """Return the request for the check in this folder. Raises ConformanceError for other runs."""
    kept = read_record(Kept, run.path / CHECK, mistake=lambda it: "" if it.files else "no files")
    if kept is None:
        raise ConformanceError("is no check: it has no check.json", path=run.path)
    plan = run.plan()
    files = tuple(
        replace(user_file.read(folder_of(run, name) / path.name), name=name, path=path)
        for name, path in zip(kept.files, map(Path, kept.files.values()), strict=True)
    )
    columns = tuple(column.backend for column in plan.columns)
    return CheckRequest(files, plan.models[0], columns, kept.prompts, kept.named, kept.options)


def answered_again(run: RunFolder) -> tuple[Results, Path]:
    """Answer a stored check again, without engines; return its results and its page's path."""
    request = read_request(run)
    if request.dump:
        words, remedy = "is a check of a dump, whose numbers are not kept", run.plan().command
        raise ConformanceError(words, path=run.path, remedy=f"check it again: {remedy}")
    found = read_search_results(run)
    page = publish(run, request, tuple(answers(request, run, found=found)))
    return run.results(), page


def publish(run: RunFolder, request: CheckRequest, answered: Sequence[Answered]) -> Path:
    """Write results.json, the results as a table, and the page; return the page's path."""
    run.check_finished()
    cells = {cell.id: cell for cell in (_result(request, one) for one in answered)}
    environment = execution.environment(Thresholds())
    results = results_of(run, {}, cells, info=execution.info_of(run), environment=environment)
    footer = replace(results.footer, exit_code=int(exit_code([one.checked for one in answered])))
    scenarios = (_scenario(request.files),)
    return execution.publish(run, replace(results, scenarios=scenarios, footer=footer))


def _scenario(files: Sequence[UserFile]) -> ScenarioInfo:
    """Return the files as a scenario: `vllm` as its trace, `hf` as its reference."""
    first = files[0].path
    return ScenarioInfo(
        id=USER_TRACE.name,
        meaning="A user's own trace: on transformers in float32 it is the reference.",
        cases=tuple(file.name for file in files),
        path=f"{first.parent.name}/{first.name}" if len(files) == 1 else f"{len(files)} files",
        trace_source="\n\n".join(f"# {one.name}\n{one.text_of('vllm')}" for one in files),
        reference_source="\n\n".join(f"# {one.name}\n{one.text_of('hf')}" for one in files),
    )


def _result(request: CheckRequest, one: Answered) -> CellResult:
    checked, findings = one.checked, one.checked.findings
    decision = decision_of(one)
    lines = [f"line {each.line}: {each.code.strip()}" for each in findings if each.line]
    others = (each.words for each in findings if each.words not in checked.sentence)
    return cell_result(
        cell_of(one),
        decision,
        architecture=request.model.architecture or checked.model,
        reason=checked.sentence,
        seconds=sum(each.seconds for each in one.evidence),
        command=command_for(request, checked.file, checked.backend),
        detail="\n\n".join(filter(None, (*lines, checked.diff, decision.leading.detail))),
        harness=checked.answer is CheckAnswer.HARNESS,
        diagnosis="; ".join(others),
        prompt_ids=one.prompt_ids,
    )


def cell_of(one: Answered) -> Cell:
    """Return the cell of an answer, whose id `conformance show` and `repro` take."""
    return Cell(one.checked.model, one.checked.backend, USER_TRACE.name, one.key)


def command_for(request: CheckRequest, file: str, backend: str) -> str:
    """Return the command that checks this file again, in the folder in which it was checked."""
    what = ["--dump", file] if backend == DUMP.id else [file, "-b", backend]
    prompts = [word for text in request.prompts for word in ("--prompt", text)]
    words = ["conformance", "check", *what, "-m", request.named, *prompts, *request.options]
    return shlex.join(words)

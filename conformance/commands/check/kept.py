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
from pathlib import Path

from conformance.commands.check.answer import answers
from conformance.commands.check.checked import Answered, CheckAnswer, decision_of, exit_code
from conformance.commands.check.gather import Asked
from conformance.commands.check.searching import read_search_results
from conformance.commands.shared import execution
from conformance.errors import ConformanceError
from conformance.judge.runs.one_case import cell_result
from conformance.judge.runs.run import results_of
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


def begin(asked: Asked, reports: Path) -> RunFolder:
    """Return a new run folder with the plan of a check and copies of the files that it needs."""
    columns = tuple(map(Column, asked.backends))
    run = execution.begin(
        reports,
        (asked.model,),
        columns,
        [
            Cell(asked.model.id, column.id, USER_TRACE.name, file.name)
            for column in columns
            for file in asked.files
        ],
        scenarios=(),
        thresholds=Thresholds(),
        jobs=1,
    )
    for file in asked.files:
        for name in needed_files(file.path):
            copy = folder_of(run, file.name) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.path.parent / name, copy)
    files = {file.name: str(file.path) for file in asked.files}
    kept = Kept(asked.named, asked.prompts, files, str(Path.cwd()), asked.options)
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


def asked_of(run: RunFolder) -> Asked:
    """Return the request for the check in this folder. Raises ConformanceError for other runs."""
    kept = read_record(Kept, run.path / CHECK, mistake=lambda it: "" if it.files else "no files")
    if kept is None:
        raise ConformanceError("is no check: it has no check.json", path=run.path)
    plan = run.plan()
    paths = {name: Path(at) for name, at in kept.files.items()}
    return Asked(
        tuple(
            replace(user_file.read(folder_of(run, name) / path.name), name=name, path=path)
            for name, path in paths.items()
        ),
        plan.models[0],
        tuple(column.backend for column in plan.columns),
        kept.prompts,
        kept.named,
        kept.options,
    )


def answered_again(run: RunFolder) -> tuple[Results, Path]:
    """Answer a stored check again, without engines; return its results and its page's path."""
    asked = asked_of(run)
    if asked.dump:
        raise ConformanceError(
            "is a check of a dump, whose numbers are not kept",
            path=run.path,
            remedy=f"check it again: {run.plan().command}",
        )
    page = publish(run, asked, tuple(answers(asked, run, found=read_search_results(run))))
    return run.results(), page


def publish(run: RunFolder, asked: Asked, answered: Sequence[Answered]) -> Path:
    """Write results.json, the results as a table, and the page; return the page's path."""
    run.check_finished()
    cells = {cell.id: cell for cell in (_result(asked, one) for one in answered)}
    environment = execution.environment(Thresholds())
    results = results_of(run, {}, cells, info=execution.info_of(run), environment=environment)
    footer = replace(results.footer, exit_code=int(exit_code([one.checked for one in answered])))
    return execution.publish(run, replace(results, scenarios=(_scenario(asked),), footer=footer))


def _scenario(asked: Asked) -> ScenarioInfo:
    """Return the files as a scenario: `vllm` as its trace, `hf` as its reference."""
    files = asked.files
    first = files[0].path
    return ScenarioInfo(
        id=USER_TRACE.name,
        meaning="A user's own trace: on transformers in float32 it is the reference.",
        cases=tuple(file.name for file in files),
        path=f"{first.parent.name}/{first.name}" if len(files) == 1 else f"{len(files)} files",
        trace_source="\n\n".join(f"# {one.name}\n{one.text_of('vllm')}" for one in files),
        reference_source="\n\n".join(f"# {one.name}\n{one.text_of('hf')}" for one in files),
    )


def _result(asked: Asked, one: Answered) -> CellResult:
    checked, findings = one.checked, one.checked.findings
    decision = decision_of(one)
    lines = [f"line {each.line}: {each.code.strip()}" for each in findings if each.line]
    others = (each.words for each in findings if each.words not in checked.sentence)
    return cell_result(
        cell_of(one),
        decision,
        architecture=asked.model.architecture or checked.model,
        reason=checked.sentence,
        seconds=sum(each.seconds for each in one.evidence),
        command=command_for(asked, checked.file, checked.backend),
        detail="\n\n".join(filter(None, (*lines, checked.diff, decision.leading.detail))),
        harness=checked.answer is CheckAnswer.HARNESS,
        diagnosis="; ".join(others),
        prompt_ids=one.prompt_ids,
    )


def cell_of(one: Answered) -> Cell:
    """Return the cell of an answer, whose id `conformance show` and `repro` take."""
    return Cell(one.checked.model, one.checked.backend, USER_TRACE.name, one.key)


def command_for(asked: Asked, file: str, backend: str) -> str:
    """Return the command that checks this file again, in the folder in which it was checked."""
    what = ["--dump", file] if asked.dump else [file, "-b", backend]
    prompts = [word for text in asked.prompts for word in ("--prompt", text)]
    return shlex.join(["conformance", "check", *what, "-m", asked.named, *prompts, *asked.options])

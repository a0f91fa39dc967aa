"""A check is kept as a run is: its plan, its files, and results that every verb reads.

Beside plan.json lies check.json with what was asked, and below files/ each file as it was, with
those of its folder that it imports: an answer is given again (`conformance judge`) and a script is
written (`conformance repro`) from them.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from conformance import execution
from conformance.builtin.user_trace import USER_TRACE
from conformance.check import source
from conformance.check.answer import Answered, answers
from conformance.check.checked import Answer, exit_code
from conformance.check.finding import Finding
from conformance.check.gather import Asked
from conformance.check.searching import found_in
from conformance.check.source import UserFile
from conformance.check.verdict import leading, verdict_of
from conformance.errors import ConformanceError
from conformance.inputs import text_file
from conformance.judging_runs.run import results_of
from conformance.records import (
    Backend,
    CellResult,
    Results,
    RunInfo,
    ScenarioInfo,
    Thresholds,
    record,
)
from conformance.records.base import Id
from conformance.report import html, tables
from conformance.runner import Summary
from conformance.store import CHECK, RunFolder
from conformance.store.files import read_record, write_record

#: What the gathering took, for answers that are given later.
_GATHERED = "gathered.json"

#: What may be the name of a file: below its folder, and no hidden one.
_FILE = re.compile(r"(?:(?![.])[\w.+ -]{1,100}/){0,4}(?![.])[\w.+ -]{1,100}")

#: Bytes beyond which a file that is named is not kept.
_LARGE = 64 << 20


@record()
class KeptFile:
    """One file of a check: where it was, and its own name there."""

    name: Id
    path: str


@record()
class Kept:
    """What a check was asked, and in which folder; `named` is the model as the user named it, and
    `options` are those that are given again.
    """

    named: str
    prompts: tuple[str, ...]
    files: tuple[KeptFile, ...]
    backends: tuple[Backend, ...]
    dump: bool = False
    folder: str = ""
    options: tuple[str, ...] = ()


@record()
class Gathered:
    """What the gathering of a check took."""

    seconds: float
    peak_mib: float


def is_check(run: RunFolder) -> bool:
    return (run.path / CHECK).is_file()


def keep(run: RunFolder, asked: Asked) -> None:
    """Copy the files, so that a check is complete in itself."""
    for file in asked.files:
        folder = folder_of(run, file.name)
        folder.mkdir(parents=True)
        for path in (file.path, *beside(file.path)):
            shutil.copyfile(path, folder / path.name)
        for name in named_files(file, file.path.parent):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.path.parent / name, folder / name)
    files = tuple(KeptFile(file.name, str(file.path)) for file in asked.files)
    here, options = str(Path.cwd()), asked.options
    kept = Kept(asked.named, asked.prompts, files, asked.backends, asked.dump, here, options)
    write_record(run.path / CHECK, kept)


def folder_of(run: RunFolder, name: str) -> Path:
    """Where a file of a check lies, with those that it imports."""
    return run.path / "files" / name


def contents(run: RunFolder, file: UserFile) -> tuple[Path, ...]:
    """What is kept of a file: itself, what it imports and what it reads."""
    folder = folder_of(run, file.name)
    modules = filter(Path.is_file, sorted(folder.glob("*.py")))
    named = (folder / name for name in named_files(file, folder))
    return tuple(dict.fromkeys((folder / file.path.name, *modules, *named)))


def asked_of(run: RunFolder) -> Asked:
    """What the check in this folder was asked. Raises ConformanceError for any other run."""
    kept = read_record(Kept, run.path / CHECK, mistake=lambda it: "" if it.files else "no files")
    if kept is None:
        raise ConformanceError("is no check: it has no check.json", path=run.path)
    plan = run.plan()
    files = tuple(_read(run, one) for one in kept.files)
    model, prompts = plan.models[0], kept.prompts
    return Asked(
        files,
        model,
        kept.backends,
        prompts,
        kept.named,
        plan.command,
        kept.dump,
        options=kept.options,
    )


def _read(run: RunFolder, one: KeptFile) -> UserFile:
    copy = source.read(folder_of(run, one.name) / Path(one.path).name)
    return replace(copy, name=one.name, path=Path(one.path))


def answered_again(run: RunFolder) -> tuple[Results, Path]:
    """Give the answers of a stored check once more, without any engine, and its page."""
    asked = asked_of(run)
    if asked.dump:
        raise ConformanceError(
            "is a check of a dump, whose numbers are not kept",
            path=run.path,
            remedy=f"check it again: {asked.command}",
        )
    given = tuple(answers(asked, run, run.plan().thresholds, found=found_in(run)))
    page = publish(run, asked, given)
    return run.results(), page


def beside(path: Path) -> list[Path]:
    """The files of its own folder that a file imports, and what those import."""
    known: list[Path] = []
    waiting = [path]
    while waiting:
        for name in _imports(waiting.pop()):
            file = path.parent / f"{name}.py"
            if file != path and file not in known and file.is_file():
                known.append(file)
                waiting.append(file)
    return known


def named_files(file: UserFile, folder: Path) -> list[str]:
    """The files below a folder, its own, that a file names in its text, as what it loads: vectors,
    lists of prompts. Modules and what is large are left out.
    """
    texts = (
        node.value for node in ast.walk(ast.parse(file.text)) if isinstance(node, ast.Constant)
    )
    names = {text for text in texts if isinstance(text, str) and _FILE.fullmatch(text)}
    found = []
    for name in sorted(names):
        path = folder / name
        if path.is_file() and path.suffix != ".py" and path.stat().st_size <= _LARGE:
            found.append(name)
    return found


def _imports(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(text_file.read(path))
    except (ConformanceError, MemoryError, RecursionError, SyntaxError, ValueError):
        return  # Python says what is wrong with it where it is run
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def gathered(run: RunFolder, summary: Summary) -> None:
    """Keep what the gathering took: whoever is interrupted now has all that an answer needs."""
    write_record(run.path / _GATHERED, Gathered(summary.seconds, summary.peak_mib))


def publish(run: RunFolder, asked: Asked, answered: Sequence[Answered]) -> Path:
    """Write results.json, the same as a table, and the page, whose path is returned. What the
    gathering took stays as it was kept.
    """
    results = results_in(run, asked, answered, _info(run, asked))
    run.write_results(results)
    tables.write(results, run.path)
    return html.publish(results, run.path)


def _info(run: RunFolder, asked: Asked) -> RunInfo:
    if (run.path / "results.json").exists():
        return run.results().run
    run.check_finished()
    took = read_record(Gathered, run.path / _GATHERED) or Gathered(0.0, 0.0)
    return RunInfo(
        id=run.id,
        started=run.plan().started,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=took.seconds,
        command=asked.command,
        jobs=run.plan().jobs,
        peak_mib=took.peak_mib,
    )


def results_in(
    run: RunFolder, asked: Asked, answered: Sequence[Answered], info: RunInfo
) -> Results:
    """The answers as cells."""
    cells = [_cell(asked, one) for one in answered]
    environment = execution.environment(Thresholds())
    judged = {cell.id: cell for cell in cells}
    results = results_of(run, {}, judged, info=info, environment=environment)
    code = int(exit_code([one.checked for one in answered]))
    return replace(
        results,
        scenarios=(_scenario(asked),),
        footer=replace(results.footer, exit_code=code),
    )


def _scenario(asked: Asked) -> ScenarioInfo:
    """The files, as a scenario's two sides: what runs on the engine, and what it must mean."""
    files = asked.files
    first = files[0].path
    return ScenarioInfo(
        id=USER_TRACE.name,
        meaning="A user's own trace: on transformers in float32 it is the truth.",
        cases=tuple(file.name for file in files),
        path=f"{first.parent.name}/{first.name}" if len(files) == 1 else f"{len(files)} files",
        trace_source="\n\n".join(_source(file, "vllm", files) for file in files),
        reference_source="\n\n".join(_source(file, "hf", files) for file in files),
    )


def _source(file: UserFile, side: str, files: Sequence[UserFile]) -> str:
    head = f"# {file.name}\n" if len(files) > 1 else ""
    function = file.functions.get(file.function_for(side))
    return head + (file.segment(function) if function else "")


def _cell(asked: Asked, one: Answered) -> CellResult:
    checked = one.checked
    decided, aside = leading(one)
    return CellResult(
        id=cell_id(one),
        model=checked.model,
        architecture=asked.model.architecture or checked.model,
        backend=checked.backend,
        scenario=USER_TRACE.name,
        case=one.key,
        verdict=verdict_of(one),
        reason=checked.sentence,
        seconds=sum(each.seconds for each in one.evidence),
        command=command_for(asked, checked.file, checked.backend),
        observations=decided.observations,
        relations=decided.relations,
        worst_site=decided.worst_site,
        worst_ratio=decided.worst_ratio,
        detail="\n\n".join(filter(None, (_edits(checked.findings), decided.detail))),
        harness=checked.answer is Answer.HARNESS,
        diagnosis="; ".join(
            finding.words for finding in checked.findings if finding.words not in checked.sentence
        ),
        prompt_ids=one.prompt_ids,
        precision=decided.precision,
        decided=decided.verdict,
        beside=aside,
        frames=decided.frames,
    )


def cell_id(one: Answered) -> str:
    """What `conformance show` and `repro` call it."""
    return f"{USER_TRACE.name}[{one.checked.model}-{one.checked.backend}-{one.key}]"


def command_for(asked: Asked, file: str, backend: str) -> str:
    """The line that checks this file again, where it was checked."""
    what = ["--dump", file] if asked.dump else [file, "-b", backend]
    prompts = [word for text in asked.prompts for word in ("--prompt", text)]
    return shlex.join(["conformance", "check", *what, "-m", asked.named, *prompts, *asked.options])


def _edits(findings: Sequence[Finding]) -> str:
    """The lines to change, as they are and as they should be."""
    lines = []
    for finding in findings:
        if finding.edit is not None:
            lines.append(f"line {finding.edit.line}:")
            before = textwrap.dedent(finding.edit.before).strip().splitlines() or [""]
            lines += [f"{'-' if finding.edit.after else ' '} {line}" for line in before]
            after = textwrap.dedent(finding.edit.after)
            lines += [f"+ {line}".rstrip() for line in after.splitlines()]
    return "\n".join(lines)

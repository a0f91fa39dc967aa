"""`conformance check`: compare a user's own trace on transformers and vLLM."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from conformance.commands.shared import engines, selecting
from conformance.commands.shared.options import Manifest, err, note, out
from conformance.errors import ConformanceError, ExitCode
from conformance.spec.checkpoints import cache_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from conformance.commands.check.checked import Answered
    from conformance.commands.check.dumps import Dump
    from conformance.commands.check.gather import CheckRequest
    from conformance.runner.scheduling import Event, RunSummary, TimeLimits
    from conformance.runner.store import RunFolder


#: Parameters that are set anew in the command for a single file and engine.
_ITS_OWN = frozenset({"files", "model", "backend", "prompt", "dump", "json", "fix"})


def check(
    *,
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option("-m", "--model", help="A local folder, a hub's name, an id of models.yaml."),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files with `trace(lm)`, or `hf(model)` and `vllm(model)`."),
    ] = None,
    backend: Annotated[
        list[str],
        typer.Option("-b", "--backend", help="vllm-pp1 (default), vllm-pp2, vllm-tp2 …; repeat."),
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    prompt: Annotated[
        list[str], typer.Option("--prompt", help="For functions that take prompts; repeat.")
    ] = [],  # noqa: B006
    dump: Annotated[
        Path | None,
        typer.Option(help="Judge what another tool recorded: safetensors with `prompt_ids`."),
    ] = None,
    maps: Annotated[
        list[str], typer.Option("--map", help="NAME=PLACE for a name of the dump; repeat.")
    ] = [],  # noqa: B006
    json: Annotated[bool, typer.Option("--json", help="The answers as JSON.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write the verified edit into the file; FILE.orig stays.")
    ] = False,
    search: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds to run edits of a file for; 0: none. Default: what the check took."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds each run of the file may take.")
    ] = 60.0,
    load_timeout: Annotated[float, typer.Option(min=1, help="Seconds an engine may load.")] = 300.0,
    memory: Annotated[
        float, typer.Option(min=0, help="GiB the file may take; default: half of what is free.")
    ] = 0.0,
    manifest: Manifest,
    reports: Annotated[
        Path | None, typer.Option(help="Where what was seen is kept; default: the cache.")
    ] = None,
) -> None:
    """Say whether a trace of your own computes the same on vLLM, and if not, which line to change.

    The reference is transformers in float32; its baseline runs give the noise floor. The engine
    runs in float32 (does the trace mean the same?) and in bf16 (are the numbers as good?). If the
    trace differs, edits of your file are run until one agrees: an edit printed as verified was run.

    Exits 0 when it is the same, 1 when it differs, 2 when the file or the model cannot be checked.

    Example: `conformance check my_trace.py -m HuggingFaceTB/SmolLM2-135M-Instruct -b vllm-pp2`
    """
    if bool(files) == bool(dump):
        raise ConformanceError(
            "there is nothing to check" if not files else "a file and a dump are two checks",
            remedy="conformance check my_trace.py -m MODEL, or --dump FILE.safetensors -m MODEL",
        )
    from conformance.runner.planning import named
    from conformance.spec.inputs import user_file

    # Check this first: building an environment takes minutes.
    texts = user_file.read_all(files or [])
    columns = named.columns(backend)
    chosen = named.find_model(model, manifest)
    named.require_layers(columns, chosen)
    engines.require_engine()
    from conformance.commands.check import dumps, gather, show, stored_check
    from conformance.commands.check.checked import exit_code
    from conformance.commands.check.search.edits import write_fixes
    from conformance.commands.shared import execution
    from conformance.runner.planning import trust
    from conformance.runner.scheduling import TimeLimits
    from conformance.runner.store import retention
    from conformance.spec.records import to_json

    place = reports or selecting.checks()
    recorded = dumps.read(dump, maps) if dump else None
    if recorded:
        texts = (dumps.as_file(recorded, place / "dump"),)
    request = gather.CheckRequest(
        texts,
        chosen,
        (named.DUMP, *(columns if backend else ())) if recorded else columns,
        tuple(prompt),
        model,
        options=_list_options(context),
        memory=memory,
        search=search,
    )
    folder = stored_check.begin(request, place)
    code = tuple(
        path for file in request.files for path in stored_check.contents(folder, file).values()
    )
    trust.note(cache_folder(), trust.Executed((chosen,), code=code))
    limits = TimeLimits(cell=timeout, load=load_timeout)
    with err.status("starting") as status:
        activity = CheckActivity(status)
        known: dict[tuple[str, str], Answered] = {}
        summary = _gather(request, folder, limits, activity, known)
        try:
            execution.keep_info(folder, summary)
            answered = _answer(request, folder, recorded, None if json else out, activity, known)
            page = stored_check.publish(folder, request, answered)
        except KeyboardInterrupt:
            activity.tell(_how_to_continue(request, folder, reports))
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    if reports is None:
        retention.sweep(retention.runs(place), retention.CHECKS)
    if fix:
        before = {str(file.path): file.text for file in request.files}
        for line in write_fixes([one.checked for one in answered], before):
            note(line)
    checked = [replace(one.checked, page=str(page)) for one in answered]
    if json:
        typer.echo(f"[{', '.join(map(to_json, checked))}]")
    else:
        cells = [
            (stored_check.cell_of(one).id, each)
            for one, each in zip(answered, checked, strict=True)
        ]
        show.more(cells, folder.results().run, reports, err)
    raise typer.Exit(exit_code(checked))


class CheckActivity:
    """The current activity: the status line of a terminal, or lines in a log."""

    def __init__(self, status: Status) -> None:
        self.status = status

    def show(self, words: str) -> None:
        """Show what is done now."""
        if words and err.is_terminal:
            self.status.update(escape(words))
        elif words:
            self.tell(words)

    def tell(self, words: str) -> None:
        """Print a line that stays."""
        with self.paused():
            note(words)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the status display, which would be drawn over a line on the same terminal."""
        self.status.stop()
        try:
            yield
        finally:
            self.status.start()


def _list_options(context: typer.Context) -> tuple[str, ...]:
    """Return the options that were given on the command line, without those that took defaults."""
    words = []
    for option in context.command.params:
        name = str(option.name)
        source = context.get_parameter_source(name)
        if name in _ITS_OWN or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        for one in value if isinstance(value, list) else [value]:
            words += [option.opts[-1], str(one)]
    return tuple(words)


def _gather(
    request: CheckRequest,
    folder: RunFolder,
    limits: TimeLimits,
    activity: CheckActivity,
    known: dict[tuple[str, str], Answered],
) -> RunSummary:
    """Run the files, and edits of them. `known` receives answers that are found meanwhile. Exits
    when interrupted.
    """
    from conformance.commands.check import gather
    from conformance.commands.check.searching import search

    def progress(event: Event) -> None:
        activity.show(gather.describe_event(event))

    searched = request.search != 0 and request.engines and not request.dump
    steps = search(request, folder, known, activity.show) if searched else None
    summary = gather.gather(request, folder, limits, progress, steps)
    if summary.interrupted:
        activity.tell("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED)
    return summary


def _answer(
    request: CheckRequest,
    folder: RunFolder,
    recorded: Dump | None,
    console: Console | None,
    activity: CheckActivity,
    known: Mapping[tuple[str, str], Answered],
) -> tuple[Answered, ...]:
    """Return the answers for all files, or the one for a dump. `known` are answers from the
    search. Print each answer to the console, if there is one, when it is ready.
    """
    from conformance.commands.check import answer, dumps, show
    from conformance.commands.check.searching import read_search_results

    answers: Iterable[Answered] = ()
    if recorded:
        activity.show(f"comparing {recorded.path.name} with transformers")
        answers = (dumps.judge_dump(recorded, request, folder),)
        request = replace(request, backends=request.engines)
    found = read_search_results(folder)
    answered = []
    for one in chain(answers, answer.answers(request, folder, activity.show, found, known)):
        answered.append(one)
        if console is not None:
            with activity.paused():
                show.answer(one.checked, [file.path for file in request.files], console)
    activity.show("writing the page")
    return tuple(answered)


def _how_to_continue(request: CheckRequest, folder: RunFolder, reports: Path | None) -> str:
    """Return how to continue: the observations are complete, but a dump's numbers are not kept."""
    if request.dump:
        return f"interrupted; check it again: {folder.plan().command}"
    where = ["--reports", str(reports)] if reports else []
    return f"interrupted; go on with: {shlex.join(['conformance', 'judge', folder.id, *where])}"

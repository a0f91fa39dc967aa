"""`conformance check`: is a user's own trace the same on vLLM?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.cli import engines, selecting
from conformance.cli.options import Manifest, err, out

if TYPE_CHECKING:
    from conformance.runner import Event


def check(
    *,
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
    """Say whether a trace of your own is the same on vLLM, and if not, which line to change.

    transformers in float32 is the truth, its other ways of computing are the noise. The engine
    runs in float32 (does it mean the same?) and in bf16 (are the numbers as good?).

    Exits 0 when it is the same, 1 when it differs, 2 when the file or the model cannot be checked.

    Example: `conformance check my_trace.py -m HuggingFaceTB/SmolLM2-135M-Instruct -b vllm-pp2`
    """
    import shlex
    import sys
    from dataclasses import replace

    from conformance.check import models
    from conformance.check.parsing import source
    from conformance.errors import ConformanceError, ExitCode

    if bool(files) == bool(dump):
        raise ConformanceError(
            "there is nothing to check" if not files else "a file and a dump are two checks",
            remedy="conformance check my_trace.py -m MODEL, or --dump FILE.safetensors -m MODEL",
        )
    # Before an environment is built for it.
    texts = source.read_all(files or [])
    columns = models.columns(backend)
    named = models.resolve(model, manifest)
    engines.needed()
    from conformance.check import answer, gather, kept, show
    from conformance.check import checked as checked_as
    from conformance.check import dump as dumps
    from conformance.check.advice import porting
    from conformance.records import Thresholds
    from conformance.runner import Limits

    place = reports or selecting.checks()
    recorded = dumps.read(dump, maps) if dump else None
    if recorded:
        texts = (dumps.as_file(recorded, place / "dump"),)
    request = gather.Asked(
        texts,
        named,
        () if recorded else columns,
        tuple(prompt),
        model,
        shlex.join(["conformance", *sys.argv[1:]]),
        dump=recorded is not None,
        memory=memory,
    )
    if request.backends:
        porting.require_both_sides(request.files)
    folder = gather.begin(request, place)
    kept.keep(folder, request)
    with err.status("starting") as status:

        def progress(event: Event) -> None:
            words = gather.words(event)
            if words and err.is_terminal:
                status.update(words)
            elif words:
                err.print(words, highlight=False)

        summary = gather.gather(request, folder, Limits(cell=timeout, load=load_timeout), progress)
    if summary.interrupted:
        err.print("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED)
    answered = (
        [dumps.judged(recorded, request, folder, Thresholds())]
        if recorded
        else answer.answers(request, folder, Thresholds())
    )
    page = kept.publish(folder, request, answered, summary)
    if reports is None:
        kept.sweep(place)
    checked = [replace(answer.checked, page=str(page)) for answer in answered]
    if json:
        typer.echo(checked_as.to_text(checked))
    else:
        show.show(checked, out)
        show.more(
            list(zip(map(kept.cell_id, answered), checked, strict=True)),
            folder.results().run,
            reports,
            err,
        )
    raise typer.Exit(checked_as.exit_code(checked))

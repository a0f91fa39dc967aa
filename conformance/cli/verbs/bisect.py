"""`conformance bisect`: find the version, commit or change that changes a cell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.bisect.presentation.signature_parts import USUAL, SignaturePart
from conformance.bisect.search import CONFIRM, Class
from conformance.cli import engines
from conformance.cli.options import Choice, Reports, RunOptions, Trust, Without, err, out
from conformance.errors import ConformanceError, ExitCode
from conformance.planning import selection

if TYPE_CHECKING:
    from conformance.bisect.state import BisectFolder
    from conformance.runner import TimeLimits


def bisect(
    *,
    choice: Annotated[Choice, Without("env", "environments")],
    running: Annotated[RunOptions, Without("keep")],
    subject: Annotated[
        str, typer.Argument(help="vllm, nnsight, transformers, torch, another package, or lock.")
    ] = "",
    good: Annotated[str, typer.Option(help="A version, revision or lock file that is fine.")] = "",
    bad: Annotated[str, typer.Option(help="One that is not.")] = "",
    repo: Annotated[
        Path | None, typer.Option(help="Search the commits of this local repository of SUBJECT.")
    ] = None,
    also: Annotated[
        str, typer.Option("--with", help="Pinned in every environment: 'nnsight==0.8.0 …'.")
    ] = "",
    by: Annotated[
        list[SignaturePart],
        typer.Option(help="What of a cell's signature counts; again for more."),
    ] = list(USUAL),  # noqa: B006
    neither: Annotated[
        Class, typer.Option(help="What a signature is that neither end has.")
    ] = Class.BAD,
    confirm: Annotated[
        int, typer.Option(min=1, help="How often the two beside the answer are tried in all.")
    ] = CONFIRM,
    resume: Annotated[
        str, typer.Option(help="Go on with this bisect (`latest`): its trials are kept.")
    ] = "",
    retry: Annotated[
        bool, typer.Option(help="With --resume: try again what was untestable.")
    ] = False,
    trust: Trust = False,
    reports: Reports,
) -> None:
    """Find the version after which the selected cells changed.

    Cells are compared by signature: verdict, diagnosis, and how the engine's layers hold the
    residual stream. Both ends are tried first. A signature that matches neither end counts as bad;
    with `--neither good` the search finds where the bad end's own signature begins. The two
    neighbours of the answer are tried three times each in fresh workers.

    Exits 0 when the culprit is found, 1 when the ends do not differ or only a range is left, 2 for
    ends that cannot be used, 3 when the harness failed.

    Examples: `conformance bisect vllm --good 0.28.0 --bad 0.32.0 -m gpt_neox -k read_all`,
    `conformance bisect nnsight --repo ../nnsight --good v0.8.0 --bad main -m llama`,
    `conformance bisect lock --good before.txt --bad after.txt -m llama`,
    `conformance bisect --resume latest`.
    """
    engines.needed()
    from conformance.bisect import state as states
    from conformance.bisect import trial
    from conformance.cli import bisect_rows, selecting

    if resume:
        folder = states.find(reports, resume)
        row = bisect_rows.row(subject, good, bad, repo, also) if subject and good and bad else None
        selecting.require_known(
            trial.executed(folder),
            folder.path,
            choice,
            trust=trust,
            requirements=row.requirements if row else (),
        )
        if choice.allow_moves:
            bisect_rows.allow_moves(folder)
        if retry:
            bisect_rows.forget_untestable(folder)
    else:
        if not (subject and good and bad):
            raise ConformanceError(
                "a bisect needs to know what to search, and two ends",
                remedy="conformance bisect vllm --good 0.28.0 --bad 0.32.0 -m gpt_neox",
            )
        selected = selection.select(choice)
        row = bisect_rows.row(subject, good, bad, repo, also)
        request = states.BisectionRequest(
            subject=row.subject,
            good=good,
            bad=bad,
            command=shlex.join(["conformance", *sys.argv[1:]]),
            with_cells=bisect_rows.options(choice),
            by=tuple(part for part in SignaturePart if part in by),
            neither=neither,
            confirm=confirm,
            backwards=row.backwards,
            allow_moves=choice.allow_moves,
        )
        folder = bisect_rows.begin(
            reports, choice.scenarios, request, row, selected, running.groups
        )
    _finish(folder, running.limits)


def _finish(folder: BisectFolder, limits: TimeLimits) -> None:
    from conformance.checkpoints import cache_folder
    from conformance.cli import bisect_rows

    try:
        conclusion = bisect_rows.carry_on(folder, cache_folder(), limits, out)
    except KeyboardInterrupt:
        err.print(f"interrupted; go on with: conformance bisect --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    from conformance.bisect import files
    from conformance.bisect.presentation import document, report
    from conformance.report.render import terminal

    made = report.make(folder.read(), conclusion, folder, cache_folder())
    page = files.write(made, folder)
    terminal.document(document.document(made), out)
    out.print(f"{page}", soft_wrap=True)
    raise typer.Exit(made.exit_code)
